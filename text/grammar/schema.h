/* Internals of the JSON schema reader, for text/grammar/schema*.c only. See readers.h.
 *
 * A value may have to fit several schemas at once (allOf, $ref with other keywords, one schema's additionalProperties
 * for another's property), so the compiler works on sets of schemas. Each set becomes a rule, reused when the set
 * recurs: recursion is finite.
 */
#ifndef CLIME_TEXT_GRAMMAR_SCHEMA_H
#define CLIME_TEXT_GRAMMAR_SCHEMA_H

#include "common/json/tree.h"
#include "text/grammar/readers.h"

#define CLIME_MAX_CONJUNCTS 64
#define CLIME_SCHEMA_EXACT 0x1p53 /* integers below it are exact in the tree */

/* Parts of a set's member already handled. */
enum clime_schema_done { CLIME_DONE_ANY_OF = 1, CLIME_DONE_ONE_OF = 2 };

struct clime_schema_member {
    const struct cJSON *schema;
    unsigned done; /* enum clime_schema_done */
    bool open;     /* its reference is being joined */
};

struct clime_schema_set {
    struct clime_schema_member at[CLIME_MAX_CONJUNCTS]; /* in order of discovery; each once */
    int n;
    bool never; /* contains `false` */
};

struct clime_schema_rule { /* a set and its rule */
    struct clime_schema_set set;
    int rule;
};

struct clime_schema_tag { /* tag of a oneOf, named by discriminator */
    const struct cJSON *discriminator;
    struct cJSON *required; /* a schema that requires it; owned */
};

struct clime_schema {
    struct clime_exprs *x;
    const struct cJSON *root;
    struct clime_error *e;
    enum clime_err err;
    struct clime_schema_rule *rules;
    int n_rules, rules_size;
    struct clime_schema_tag *tags;
    int n_tags;
    int depth;
    int64_t spent; /* comparisons, see clime_schema_spend */
    /* shared rules; -1 = not built yet */
    int space, string, json_char, number, integer, value;
};

/* Sets the error once; returns NEVER. */
int clime_schema_bad(struct clime_schema *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Counts `n` comparisons of names or values. False, with the error set, when the budget is used up: comparing two lists
 * costs the product of their lengths. */
bool clime_schema_spend(struct clime_schema *s, int64_t n);

/* schema.c */
void clime_schema_join(struct clime_schema *s, struct clime_schema_set *set, const struct cJSON *schema);
const struct cJSON *clime_schema_resolve(struct clime_schema *s,
                                         const char *ref); /* NULL, with the error set: not found */
int clime_schema_compile(struct clime_schema *s, const struct clime_schema_set *set); /* a reference to its rule */
unsigned clime_schema_set_types(struct clime_schema *s, const struct clime_schema_set *set); /* CLIME_TYPE_... */

/* Creates a shared rule at first use and stores its number in *rule; define it with clime_expr_rule_is. */
int clime_schema_shared(struct clime_schema *s, int *rule, const char *name);

/* schema_values.c: whole values */
int clime_schema_space(struct clime_schema *s);                    /* white space between tokens */
int clime_schema_any(struct clime_schema *s);                      /* any value */
int clime_schema_any_string(struct clime_schema *s);               /* with its quotes */
int clime_schema_any_number(struct clime_schema *s, bool integer); /* schema_numbers.c */
int clime_schema_literal(struct clime_schema *s, const struct cJSON *value);
/* True if the schema's const and enum, if any, contain the value. */
bool clime_schema_lists(struct clime_schema *s, const struct cJSON *schema, const struct cJSON *value);
int clime_schema_wrap(struct clime_schema *s, const char *open, int inside, const char *close);

/* One type each, of a flat set (without $ref, allOf, anyOf, oneOf, enum, const). */
int clime_schema_string(struct clime_schema *s, const struct clime_schema_set *set);
int clime_schema_pattern(struct clime_schema *s, const char *pattern); /* of a JSON string; errors quote it */
int clime_schema_number(struct clime_schema *s, const struct clime_schema_set *set, bool integer);
int clime_schema_array(struct clime_schema *s, const struct clime_schema_set *set);
int clime_schema_object(struct clime_schema *s, const struct clime_schema_set *set);

/* schema_oneof.c: sets *with to the set plus one option of a member's anyOf or oneOf (done). A oneOf option must be
 * provably disjoint from the later ones, or it is an error. */
void clime_schema_option(struct clime_schema *s, const struct clime_schema_set *set, int member, unsigned done,
                         const struct cJSON *option, struct clime_schema_set *with);
void clime_schema_free(struct clime_schema *s); /* not the tree */

/* A keyword's value as an integer >= 0, or `absent`. */
int64_t clime_schema_count(struct clime_schema *s, const struct cJSON *schema, const char *key, int64_t absent);

#endif
