/* Operators of a chat template's expressions: tokens to nodes, by precedence. Called by parse.c while
 * compiling.
 *
 * From weak to strong: if-else; or; and; not; comparisons, in; + -; ~; * / // %; **; unary - +; postfix . [] (); then
 * filters and tests, which bind to the unary expression before them (so `-1|abs` is 1, as in Jinja).
 *
 * Invariant: nesting is bounded by clime_tparse_enter and every chain of operators by clime_tparse_chain, so neither
 * the parser nor the evaluator, which recurse along the tree, can be driven through the stack by a hostile template.
 */
#include "text/template/parse.h"

static struct clime_tnode *parse_or(struct clime_tparser *p);

/* ---- operators ---- */

static struct clime_tnode *binary(struct clime_tparser *p, enum clime_tnode_kind kind, struct clime_tnode *a,
                                  struct clime_tnode *(*right)(struct clime_tparser *)) {
    struct clime_tnode *n = clime_tparse_node(p, kind);
    n->op = clime_tparse_next(p)->type;
    n->a = a;
    n->b = right(p);
    return n;
}

static struct clime_tnode *parse_unary_with(struct clime_tparser *p, bool with_filter) {
    struct clime_tnode *n;
    clime_tparse_enter(p);
    if (p->at->type == '-' || p->at->type == '+') {
        n = clime_tparse_node(p, p->at->type == '-' ? CLIME_N_NEG : CLIME_N_POS);
        clime_tparse_next(p);
        n->a = parse_unary_with(p, false);
    } else {
        n = clime_tparse_primary(p, false);
    }
    n = clime_tparse_postfix(p, n);
    for (int chain = 0; with_filter; clime_tparse_chain(p, &chain)) {
        if (p->at->type == '|')
            n = clime_tparse_filters(p, n, false);
        else if (clime_tparse_is_name(p, "is"))
            n = clime_tparse_test(p, n);
        else if (p->at->type == '(')
            n = clime_tparse_call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

static struct clime_tnode *parse_unary(struct clime_tparser *p) {
    return parse_unary_with(p, true);
}

static struct clime_tnode *parse_pow(struct clime_tparser *p) {
    struct clime_tnode *n = parse_unary(p);
    for (int chain = 0; p->at->type == CLIME_TOK_POW; clime_tparse_chain(p, &chain))
        n = binary(p, CLIME_N_BINARY, n, parse_unary);
    return n;
}

static struct clime_tnode *parse_product(struct clime_tparser *p) {
    struct clime_tnode *n = parse_pow(p);
    for (int chain = 0;
         p->at->type == '*' || p->at->type == '/' || p->at->type == '%' || p->at->type == CLIME_TOK_FLOORDIV;
         clime_tparse_chain(p, &chain))
        n = binary(p, CLIME_N_BINARY, n, parse_pow);
    return n;
}

static struct clime_tnode *parse_concat(struct clime_tparser *p) {
    struct clime_tnode *first = parse_product(p);
    if (p->at->type != '~') return first;
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CONCAT);
    struct clime_tnodes parts = {0};
    clime_tnodes_push(p->tr, &parts, first);
    while (clime_tparse_skip(p, '~')) clime_tnodes_push(p->tr, &parts, parse_product(p));
    n->list = parts.v;
    n->n = parts.n;
    return n;
}

static struct clime_tnode *parse_sum(struct clime_tparser *p) {
    struct clime_tnode *n = parse_concat(p);
    for (int chain = 0; p->at->type == '+' || p->at->type == '-'; clime_tparse_chain(p, &chain))
        n = binary(p, CLIME_N_BINARY, n, parse_concat);
    return n;
}

/* Consumes a comparison operator. */
static bool parse_compare_op(struct clime_tparser *p, uint8_t *op) {
    switch (p->at->type) {
    case CLIME_TOK_EQ:
        *op = CLIME_CMP_EQ;
        break;
    case CLIME_TOK_NE:
        *op = CLIME_CMP_NE;
        break;
    case CLIME_TOK_LE:
        *op = CLIME_CMP_LE;
        break;
    case CLIME_TOK_GE:
        *op = CLIME_CMP_GE;
        break;
    case '<':
        *op = CLIME_CMP_LT;
        break;
    case '>':
        *op = CLIME_CMP_GT;
        break;
    case CLIME_TOK_NAME:
        *op = CLIME_CMP_IN;
        if (clime_tparse_is_name(p, "in")) break;
        if (!clime_tparse_is_name(p, "not") || p->at[1].type != CLIME_TOK_NAME || !clime_str_is(p->at[1].text, "in"))
            return false;
        clime_tparse_next(p);
        *op = CLIME_CMP_NOT_IN;
        break;
    default:
        return false;
    }
    clime_tparse_next(p);
    return true;
}

static struct clime_tnode *parse_compare(struct clime_tparser *p) {
    struct clime_tnode *first = parse_sum(p);
    uint8_t op;
    if (!parse_compare_op(p, &op)) return first;
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_COMPARE);
    struct clime_tnodes operands = {0};
    struct clime_tout ops = {0};
    do {
        clime_tout_addc(p->tr, &ops, (char)op);
        clime_tnodes_push(p->tr, &operands, parse_sum(p));
    } while (parse_compare_op(p, &op));
    n->a = first;
    n->list = operands.v;
    n->n = operands.n;
    n->ops = (const uint8_t *)ops.data;
    return n;
}

static struct clime_tnode *parse_not(struct clime_tparser *p) {
    if (!clime_tparse_is_name(p, "not")) return parse_compare(p);
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_NOT);
    clime_tparse_next(p);
    clime_tparse_enter(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static struct clime_tnode *parse_and(struct clime_tparser *p) {
    struct clime_tnode *n = parse_not(p);
    for (int chain = 0; clime_tparse_is_name(p, "and"); clime_tparse_chain(p, &chain))
        n = binary(p, CLIME_N_AND, n, parse_not);
    return n;
}

static struct clime_tnode *parse_or(struct clime_tparser *p) {
    struct clime_tnode *n = parse_and(p);
    for (int chain = 0; clime_tparse_is_name(p, "or"); clime_tparse_chain(p, &chain))
        n = binary(p, CLIME_N_OR, n, parse_and);
    return n;
}

struct clime_tnode *clime_tparse_expr(struct clime_tparser *p) {
    clime_tparse_enter(p);
    struct clime_tunknown *before = p->unknown;
    struct clime_tnode *n = parse_or(p);
    bool soft = p->soft;
    for (int chain = 0; clime_tparse_skip_name(p, "if"); clime_tparse_chain(p, &chain)) {
        /* What was parsed before the `if` turns out to be conditional. */
        for (struct clime_tunknown *u = p->unknown; u != before; u = u->older) u->soft = true;
        p->soft = true;
        struct clime_tnode *cond = clime_tparse_node(p, CLIME_N_COND);
        cond->b = n;
        cond->a = parse_or(p);
        if (clime_tparse_skip_name(p, "else")) cond->c = clime_tparse_expr(p);
        n = cond;
    }
    p->soft = soft;
    p->depth--;
    return n;
}

static bool is_tuple_end(const struct clime_tparser *p, const char *stop) {
    return p->at->type == CLIME_TOK_VAR_END || p->at->type == CLIME_TOK_BLOCK_END || p->at->type == ')' ||
           (stop && clime_tparse_is_name(p, stop));
}

struct clime_tnode *clime_tparse_tuple(struct clime_tparser *p, enum clime_ttuple mode, const char *stop) {
    struct clime_tnodes items = {0};
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_TUPLE);
    bool is_tuple = false;
    clime_tparse_enter(p);
    for (;;) {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (is_tuple_end(p, stop)) break;
        clime_tnodes_push(p->tr, &items, mode == CLIME_TUPLE_NO_COND ? parse_or(p) : clime_tparse_expr(p));
        if (p->at->type != ',') break;
        is_tuple = true;
    }
    p->depth--;
    if (!is_tuple && items.n) return items.v[0];
    if (!is_tuple && mode != CLIME_TUPLE_PARENS) clime_tparse_unexpected(p);
    n->list = items.v;
    n->n = items.n;
    return n;
}

/* ---- targets ---- */

static void check_target(struct clime_tparser *p, const struct clime_tnode *n) {
    if (n->kind == CLIME_N_TUPLE || n->kind == CLIME_N_LIST) {
        for (uint32_t i = 0; i < n->n; i++) check_target(p, n->list[i]);
        return;
    }
    if (n->kind != CLIME_N_NAME && n->kind != CLIME_N_NSREF)
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "can't assign to an expression");
}

struct clime_tnode *clime_tparse_target(struct clime_tparser *p, bool with_namespace, const char *stop) {
    struct clime_tnodes items = {0};
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_TUPLE);
    unsigned uses = p->uses; /* naming a variable to set it does not use it */
    bool is_tuple = false;
    for (;;) {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (is_tuple_end(p, stop)) break;
        clime_tnodes_push(p->tr, &items, clime_tparse_primary(p, with_namespace));
        if (p->at->type != ',') break;
        is_tuple = true;
    }
    p->uses = uses;
    if (!items.n) clime_tparse_unexpected(p);
    if (is_tuple) {
        n->list = items.v;
        n->n = items.n;
    } else {
        n = items.v[0];
    }
    check_target(p, n);
    return n;
}
