/* Facts: what two processes must have alike, as named texts ("rope_theta" is "10000.0"). A trainer makes them of what
 * it computes with; ranks, servers, teachers, folders and the run's record are compared with them, by one function,
 * which names the first key that differs. Any thread; one owner.
 */
#ifndef CLIME_COMMON_JSON_FACTS_H
#define CLIME_COMMON_JSON_FACTS_H

#include "common/err.h"
#include "common/json/write.h"

#define CLIME_FACTS_BYTES ((size_t)256 << 10) /* of facts as JSON, at most */

struct clime_facts { /* zero = none */
    struct clime_fact {
        char *key, *value;
    } * items;
    int n;
};

/* Adds a fact, or replaces the one of that key. A value is UTF-8 text; a checksum is written as 16 hex digits. */
void clime_facts_put(struct clime_facts *f, const char *key, const char *value);
void clime_facts_put_int(struct clime_facts *f, const char *key, int64_t value);
void clime_facts_put_checksum(struct clime_facts *f, const char *key, uint64_t sum);
/* All of `from`, each key behind the prefix ("critic."). */
void clime_facts_add(struct clime_facts *f, const char *prefix, const struct clime_facts *from);
void clime_facts_drop(struct clime_facts *f, const char *key); /* nothing where it is not there */
void clime_facts_free(struct clime_facts *f);

const char *clime_facts_get(const struct clime_facts *f, const char *key); /* NULL = there is none */
uint64_t clime_facts_checksum(const struct clime_facts *f);                /* of keys and values in their order */

/* An object of texts, as a value of the writer's. */
void clime_facts_write(const struct clime_facts *f, struct clime_jw *w);
/* Reads such an object; what is no text is a fact too, as its JSON. out: zero. CLIME_ERR_INPUT: it is no object. */
enum clime_err clime_facts_read(struct clime_str json, struct clime_facts *out, struct clime_error *e);

struct clime_facts_difference {
    const char *key, *a, *b; /* borrowed; a side without the fact has "nothing" */
};

/* Whether a key is one of allowed[n], or below one ("critic.rope_theta" is below "critic"). */
bool clime_facts_allowed(const char *key, const char *const *allowed, int n);

/* The first key, in the order of a and then of b, whose values differ or that only one has; those in allowed[n] may.
 * false: they are alike. */
bool clime_facts_differ(const struct clime_facts *a, const struct clime_facts *b, const char *const *allowed, int n,
                        struct clime_facts_difference *out);

/* The same as an error, CLIME_ERR_INPUT: "A has rope_theta 300.0, B has 10000.0". */
enum clime_err clime_facts_compare(const char *a_name, const struct clime_facts *a, const char *b_name,
                                   const struct clime_facts *b, const char *const *allowed, int n,
                                   struct clime_error *e);

#endif
