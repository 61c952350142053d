/* Grammars as expressions over bytes: built by the readers of regexes, JSON schemas and EBNF, compiled by program.h.
 *
 *   node   an expression (an index): nothing, a byte set, a literal, a sequence, alternatives, a repetition, a rule.
 *   rule   a named body; bodies may refer to any rule, so a grammar may be recursive.
 *   byte 0xFF  never part of a text: it prefixes the spelling of a special token (vocab_trie.h), so that a grammar can
 *          require the token and no text can imitate it.
 *
 * One owner, one thread. Everything is capped: past a limit `full` is set, further nodes are NEVER, and the compiler
 * fails. A node may have several parents.
 */
#ifndef CLIME_TEXT_GRAMMAR_EXPR_H
#define CLIME_TEXT_GRAMMAR_EXPR_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

#define CLIME_EXPR_MAX_NODES (1 << 19)
#define CLIME_EXPR_MAX_REPEAT (1 << 20) /* most repetitions if bounded */
#define CLIME_EXPR_INF (-1)             /* a repetition without an upper bound */

enum clime_expr_kind {
    CLIME_EXPR_NEVER, /* matches no text */
    CLIME_EXPR_EMPTY,
    CLIME_EXPR_SET,     /* one byte of sets[a] */
    CLIME_EXPR_LITERAL, /* bytes[a .. a + b) */
    CLIME_EXPR_SEQ,     /* kids[a .. a + b) */
    CLIME_EXPR_ALT,     /* kids[a .. a + b) */
    CLIME_EXPR_REPEAT,  /* node a, min to max times */
    CLIME_EXPR_RULE     /* rule a */
};

struct clime_expr_node {
    enum clime_expr_kind kind;
    int32_t a, b;
    int32_t min, max;
};

struct clime_byte_set {
    uint32_t bits[8];
};

struct clime_exprs {
    struct clime_expr_node *nodes;
    int n_nodes, nodes_size;
    int32_t *kids;
    int n_kids, kids_size;
    struct clime_byte_set *sets; /* each once */
    int n_sets, sets_size;
    struct {
        int32_t body;  /* -1 = not set */
        char name[64]; /* for messages */
    } * rules;
    int n_rules, rules_size;
    struct clime_buf bytes;
    bool full;
};

#define CLIME_EXPR_NEVER_NODE 0 /* these two always exist */
#define CLIME_EXPR_EMPTY_NODE 1

void clime_exprs_init(struct clime_exprs *x);
void clime_exprs_free(struct clime_exprs *x);

int clime_expr_set(struct clime_exprs *x, const struct clime_byte_set *s);
int clime_expr_range(struct clime_exprs *x, int lo, int hi); /* one byte in lo..hi */
int clime_expr_literal(struct clime_exprs *x, struct clime_str s);
int clime_expr_text(struct clime_exprs *x, const char *z);
int clime_expr_seq(struct clime_exprs *x, const int *kids, int n);
int clime_expr_alt(struct clime_exprs *x, const int *kids, int n);
int clime_expr_seq2(struct clime_exprs *x, int a, int b);
int clime_expr_alt2(struct clime_exprs *x, int a, int b);
int clime_expr_optional(struct clime_exprs *x, int a);
int clime_expr_repeat(struct clime_exprs *x, int a, int min, int max);
int clime_expr_rule_new(struct clime_exprs *x, struct clime_str name);
void clime_expr_rule_is(struct clime_exprs *x, int rule, int body); /* once */
int clime_expr_rule(struct clime_exprs *x, int rule);               /* a reference to it */

/* A growable list of nodes. */
struct clime_expr_list { /* zero-initialise */
    int *at;
    int n, size;
};
void clime_expr_list_add(struct clime_expr_list *l, int node);
int clime_expr_list_seq(struct clime_exprs *x, struct clime_expr_list *l); /* frees the list */
int clime_expr_list_alt(struct clime_exprs *x, struct clime_expr_list *l);

#endif
