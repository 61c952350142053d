/* Inside of the reader of JSON schemas, for text/grammar/schema*.c only. See readers.h.
 *
 * A value must fit several schemas at once (allOf, $ref beside other keywords, additionalProperties of one schema for a
 * property of another), so what is compiled is a set of schemas; each set becomes a rule, found again when it recurs,
 * which is what makes recursion come out.
 */
#ifndef CLIME_TEXT_GRAMMAR_SCHEMA_H
#define CLIME_TEXT_GRAMMAR_SCHEMA_H

#include "common/json/tree.h"
#include "text/grammar/readers.h"

#define CLIME_MAX_CONJUNCTS 64
#define CLIME_SCHEMA_EXACT 0x1p53 /* whole numbers below it are in the tree as they were written */

/* Parts of a schema that a member of a set leaves out, because they were dealt with. */
enum clime_schema_done { CLIME_DONE_ANY_OF = 1, CLIME_DONE_ONE_OF = 2 };

struct clime_schema_member {
    const struct cJSON *schema;
    unsigned done; /* enum clime_schema_done */
    bool open;     /* what it refers to is being joined */
};

struct clime_schema_set {
    struct clime_schema_member at[CLIME_MAX_CONJUNCTS]; /* in the order in which they were met; each once */
    int n;
    bool never; /* `false` is among them */
};

struct clime_schema_rule { /* a set that was met */
    struct clime_schema_set set;
    int rule;
};

struct clime_schema_tag { /* of a oneOf, which discriminator names */
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
    int64_t spent; /* on comparing, see clime_schema_spend */
    /* shared pieces; -1 = not made yet */
    int space, string, json_char, number, integer, value;
};

/* Sets the error once; returns NEVER. */
int clime_schema_bad(struct clime_schema *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Counts `n` comparisons of two names or values. False, with the error set, once a schema has used up what one may:
 * lists that are held against lists take the product of their lengths. */
bool clime_schema_spend(struct clime_schema *s, int64_t n);

/* schema.c */
void clime_schema_join(struct clime_schema *s, struct clime_schema_set *set, const struct cJSON *schema);
const struct cJSON *clime_schema_resolve(struct clime_schema *s,
                                         const char *ref); /* NULL, with the error set: nowhere */
int clime_schema_compile(struct clime_schema *s, const struct clime_schema_set *set); /* a reference to its rule */
unsigned clime_schema_set_types(struct clime_schema *s, const struct clime_schema_set *set); /* CLIME_TYPE_... */

/* A rule that is made once, at its first use: its number goes to *rule; then clime_expr_rule_is. */
int clime_schema_shared(struct clime_schema *s, int *rule, const char *name);

/* schema_values.c: whole values */
int clime_schema_space(struct clime_schema *s);                    /* what may stand between tokens */
int clime_schema_any(struct clime_schema *s);                      /* any value */
int clime_schema_any_string(struct clime_schema *s);               /* with its quotes */
int clime_schema_any_number(struct clime_schema *s, bool integer); /* schema_numbers.c */
int clime_schema_literal(struct clime_schema *s, const struct cJSON *value);
/* Whether a schema's const and enum, where it has them, hold this value. */
bool clime_schema_lists(struct clime_schema *s, const struct cJSON *schema, const struct cJSON *value);
int clime_schema_wrap(struct clime_schema *s, const char *open, int inside, const char *close);

/* One type of a flat set (no $ref, allOf, anyOf, oneOf, enum, const in it) each. */
int clime_schema_string(struct clime_schema *s, const struct clime_schema_set *set);
int clime_schema_pattern(struct clime_schema *s, const char *pattern); /* of a JSON string's inside; errors quote it */
int clime_schema_number(struct clime_schema *s, const struct clime_schema_set *set, bool integer);
int clime_schema_array(struct clime_schema *s, const struct clime_schema_set *set);
int clime_schema_object(struct clime_schema *s, const struct clime_schema_set *set);

/* schema_oneof.c: the set that holds where, of a member's anyOf or oneOf (done), this alternative does. One of a oneOf
 * must be plainly apart from those behind it, or it is an error. */
void clime_schema_option(struct clime_schema *s, const struct clime_schema_set *set, int member, unsigned done,
                         const struct cJSON *option, struct clime_schema_set *with);
void clime_schema_free(struct clime_schema *s); /* what it made; not the tree */

/* The value of a keyword as a whole number >= 0, or `absent`. */
int64_t clime_schema_count(struct clime_schema *s, const struct cJSON *schema, const char *key, int64_t absent);

#endif
