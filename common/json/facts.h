/* Facts: named settings on which two processes must agree ("rope_theta" is "10000.0"). A trainer derives them from its
 * computation; ranks, servers, teachers, folders and the run's record are compared with them by one function, which
 * names the first key that differs. Any thread; one owner.
 */
#ifndef CLIME_COMMON_JSON_FACTS_H
#define CLIME_COMMON_JSON_FACTS_H

#include "common/err.h"
#include "common/json/write.h"

#define CLIME_FACTS_BYTES ((size_t)256 << 10) /* maximum size of facts as JSON */

struct clime_facts { /* zero = none */
    struct clime_fact {
        char *key, *value;
    } * items;
    int n;
};

/* Adds or replaces a fact. A value is UTF-8 text; a checksum is written as 16 hex digits. */
void clime_facts_put(struct clime_facts *f, const char *key, const char *value);
void clime_facts_put_int(struct clime_facts *f, const char *key, int64_t value);
void clime_facts_put_checksum(struct clime_facts *f, const char *key, uint64_t sum);
/* Adds all of `from`, each key with the prefix ("critic."). */
void clime_facts_add(struct clime_facts *f, const char *prefix, const struct clime_facts *from);
void clime_facts_drop(struct clime_facts *f, const char *key); /* absent is fine */
void clime_facts_free(struct clime_facts *f);

const char *clime_facts_get(const struct clime_facts *f, const char *key); /* NULL = absent */
uint64_t clime_facts_checksum(const struct clime_facts *f);                /* over keys and values, in order */

/* Writes an object of strings, as one value. */
void clime_facts_write(const struct clime_facts *f, struct clime_jw *w);
/* Reads such an object; a value that is no string is kept as its JSON. out: zeroed. CLIME_ERR_INPUT: no object. */
enum clime_err clime_facts_read(struct clime_str json, struct clime_facts *out, struct clime_error *e);

struct clime_facts_difference {
    const char *key, *a, *b; /* borrowed; "nothing" for a side without the fact */
};

/* True when key is one of allowed[n], or below one ("critic.rope_theta" is below "critic"). */
bool clime_facts_allowed(const char *key, const char *const *allowed, int n);

/* Finds the first key, in the order of a and then of b, that differs or that only one side has, except keys in
 * allowed[n]. false: no difference. */
bool clime_facts_differ(const struct clime_facts *a, const struct clime_facts *b, const char *const *allowed, int n,
                        struct clime_facts_difference *out);

/* The same as an error, CLIME_ERR_INPUT: "A has rope_theta 300.0, B has 10000.0". */
enum clime_err clime_facts_compare(const char *a_name, const struct clime_facts *a, const char *b_name,
                                   const struct clime_facts *b, const char *const *allowed, int n,
                                   struct clime_error *e);

#endif
