/* Builds expression nodes. Called by the grammar readers, on the compiling thread; owns the arrays.
 *
 * Invariant: a node's children have smaller indices, except rules, so there are no cycles. Nodes that match nothing are
 * folded when built: an impossible branch becomes NEVER.
 */
#include "text/grammar/expr.h"

#include <stdlib.h>
#include <string.h>

/* Grows the array p of n items for `more`; at the limit sets x->full and returns p. Reallocates only to grow, since a
 * sanitizer's allocator copies at every call. */
static void *room(struct clime_exprs *x, void *p, int n, int more, int *size, size_t item) {
    if (n + more > CLIME_EXPR_MAX_NODES) x->full = true;
    if (x->full || n + more <= *size) return p;
    while (*size < n + more) *size = *size ? *size * 2 : 64;
    return xrealloc(p, (size_t)*size * item);
}

static int add(struct clime_exprs *x, struct clime_expr_node node) {
    x->nodes = room(x, x->nodes, x->n_nodes, 1, &x->nodes_size, sizeof *x->nodes);
    if (x->full) return CLIME_EXPR_NEVER_NODE;
    x->nodes[x->n_nodes] = node;
    return x->n_nodes++;
}

void clime_exprs_init(struct clime_exprs *x) {
    *x = (struct clime_exprs){.full = false};
    clime_buf_init(&x->bytes, (size_t)1 << 24);
    add(x, (struct clime_expr_node){.kind = CLIME_EXPR_NEVER});
    add(x, (struct clime_expr_node){.kind = CLIME_EXPR_EMPTY});
}

void clime_exprs_free(struct clime_exprs *x) {
    free(x->nodes);
    free(x->kids);
    free(x->sets);
    free(x->rules);
    clime_buf_free(&x->bytes);
}

int clime_expr_set(struct clime_exprs *x, const struct clime_byte_set *s) {
    int i = 0;
    while (i < x->n_sets && memcmp(&x->sets[i], s, sizeof *s) != 0) i++;
    if (i == x->n_sets) {
        x->sets = room(x, x->sets, x->n_sets, 1, &x->sets_size, sizeof *x->sets);
        if (x->full) return CLIME_EXPR_NEVER_NODE;
        x->sets[x->n_sets++] = *s;
    }
    return add(x, (struct clime_expr_node){.kind = CLIME_EXPR_SET, .a = i});
}

int clime_expr_range(struct clime_exprs *x, int lo, int hi) {
    struct clime_byte_set s = {{0}};
    for (int b = lo; b <= hi; b++) s.bits[b >> 5] |= 1u << (b & 31);
    return clime_expr_set(x, &s);
}

int clime_expr_literal(struct clime_exprs *x, struct clime_str s) {
    size_t at = x->bytes.len;
    if (s.len == 0) return CLIME_EXPR_EMPTY_NODE;
    clime_buf_add(&x->bytes, s.ptr, s.len);
    if (x->bytes.full) x->full = true;
    return add(x, (struct clime_expr_node){.kind = CLIME_EXPR_LITERAL, .a = (int32_t)at, .b = (int32_t)s.len});
}

int clime_expr_text(struct clime_exprs *x, const char *z) {
    return clime_expr_literal(x, clime_str_of(z));
}

static int add_list(struct clime_exprs *x, enum clime_expr_kind kind, const int *kids, int n, int dropped) {
    int at = x->n_kids;
    x->kids = room(x, x->kids, x->n_kids, n, &x->kids_size, sizeof *x->kids);
    if (x->full) return CLIME_EXPR_NEVER_NODE;
    for (int i = 0; i < n; i++)
        if (kids[i] != dropped) x->kids[x->n_kids++] = kids[i];
    if (x->n_kids == at) return dropped;
    if (x->n_kids == at + 1) return x->kids[--x->n_kids];
    return add(x, (struct clime_expr_node){.kind = kind, .a = at, .b = x->n_kids - at});
}

int clime_expr_seq(struct clime_exprs *x, const int *kids, int n) {
    for (int i = 0; i < n; i++)
        if (kids[i] == CLIME_EXPR_NEVER_NODE) return CLIME_EXPR_NEVER_NODE;
    return add_list(x, CLIME_EXPR_SEQ, kids, n, CLIME_EXPR_EMPTY_NODE);
}

int clime_expr_alt(struct clime_exprs *x, const int *kids, int n) {
    return add_list(x, CLIME_EXPR_ALT, kids, n, CLIME_EXPR_NEVER_NODE);
}

int clime_expr_seq2(struct clime_exprs *x, int a, int b) {
    const int kids[] = {a, b};
    return clime_expr_seq(x, kids, 2);
}

int clime_expr_alt2(struct clime_exprs *x, int a, int b) {
    const int kids[] = {a, b};
    return clime_expr_alt(x, kids, 2);
}

int clime_expr_optional(struct clime_exprs *x, int a) {
    return clime_expr_alt2(x, a, CLIME_EXPR_EMPTY_NODE);
}

int clime_expr_repeat(struct clime_exprs *x, int a, int min, int max) {
    if (max != CLIME_EXPR_INF && min > max) return CLIME_EXPR_NEVER_NODE;
    if (a == CLIME_EXPR_EMPTY_NODE || max == 0) return CLIME_EXPR_EMPTY_NODE;
    if (a == CLIME_EXPR_NEVER_NODE) return min == 0 ? CLIME_EXPR_EMPTY_NODE : a;
    if (min == 1 && max == 1) return a;
    if (min == 0 && max == 1) return clime_expr_optional(x, a);
    return add(x, (struct clime_expr_node){.kind = CLIME_EXPR_REPEAT, .a = a, .min = min, .max = max});
}

int clime_expr_rule_new(struct clime_exprs *x, struct clime_str name) {
    x->rules = room(x, x->rules, x->n_rules, 1, &x->rules_size, sizeof *x->rules);
    if (x->full) return 0;
    size_t n = name.len < sizeof x->rules->name - 1 ? name.len : sizeof x->rules->name - 1;
    x->rules[x->n_rules].body = -1;
    memcpy(x->rules[x->n_rules].name, name.ptr, n);
    x->rules[x->n_rules].name[n] = '\0';
    return x->n_rules++;
}

void clime_expr_rule_is(struct clime_exprs *x, int rule, int body) {
    if (!x->full) x->rules[rule].body = body;
}

int clime_expr_rule(struct clime_exprs *x, int rule) {
    return add(x, (struct clime_expr_node){.kind = CLIME_EXPR_RULE, .a = rule});
}

void clime_expr_list_add(struct clime_expr_list *l, int node) {
    if (l->n == l->size) {
        l->size = l->size ? l->size * 2 : 16;
        l->at = xrealloc(l->at, (size_t)l->size * sizeof *l->at);
    }
    l->at[l->n++] = node;
}

int clime_expr_list_seq(struct clime_exprs *x, struct clime_expr_list *l) {
    int node = clime_expr_seq(x, l->at, l->n);
    free(l->at);
    *l = (struct clime_expr_list){0};
    return node;
}

int clime_expr_list_alt(struct clime_exprs *x, struct clime_expr_list *l) {
    int node = clime_expr_alt(x, l->at, l->n);
    free(l->at);
    *l = (struct clime_expr_list){0};
    return node;
}
