/* Expressions of a chat template: tokens to nodes, by precedence. Called by template_parse.c while compiling.
 *
 * From weak to strong: if-else; or; and; not; comparisons, in; + -; ~; * / // %; **; unary - +; postfix . [] (); then
 * filters and tests, which bind to the unary expression before them (so `-1|abs` is 1, as in Jinja).
 *
 * Invariant: nesting is bounded by MAX_DEPTH and every chain of operators by MAX_CHAIN, so neither the parser nor the
 * evaluator, which recurse along the tree, can be driven through the stack by a hostile template.
 */
#include "model/template_builtin.h"
#include "model/template_parse.h"

#define MAX_DEPTH 300
#define MAX_CHAIN 500

static struct clime_tnode *parse_or(struct clime_tparser *p);
static struct clime_tnode *parse_primary(struct clime_tparser *p, bool with_namespace);

/* ---- tokens and nodes ---- */

bool clime_tparse_is_name(const struct clime_tparser *p, const char *name) {
    return p->at->type == CLIME_TOK_NAME && clime_str_is(p->at->text, name);
}

static const struct clime_ttoken *next(struct clime_tparser *p) {
    const struct clime_ttoken *t = p->at;
    if (t->type != CLIME_TOK_EOF) p->at++;
    p->tr->line = p->at->line;
    return t;
}

bool clime_tparse_skip_name(struct clime_tparser *p, const char *name) {
    if (!clime_tparse_is_name(p, name)) return false;
    next(p);
    return true;
}

bool clime_tparse_skip(struct clime_tparser *p, int type) {
    if (p->at->type != type) return false;
    next(p);
    return true;
}

void clime_tparse_unexpected(struct clime_tparser *p) {
    switch (p->at->type) {
    case CLIME_TOK_EOF:
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unexpected end of template");
    case CLIME_TOK_BLOCK_END:
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unexpected end of statement block");
    case CLIME_TOK_VAR_END:
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unexpected end of print statement");
    default: {
        int n = p->at->text.len > 100 ? 100 : (int)p->at->text.len;
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unexpected '%.*s'", n, p->at->text.ptr);
    }
    }
}

void clime_tparse_expect(struct clime_tparser *p, int type, const char *what) {
    if (clime_tparse_skip(p, type)) return;
    int n = p->at->text.len > 100 ? 100 : (int)p->at->text.len;
    clime_tr_fail(p->tr, CLIME_ERR_INPUT, "expected %s, got '%.*s'", what, n, p->at->text.ptr);
}

static const char *intern(struct clime_tparser *p, struct clime_str name) {
    struct clime_tv *known = clime_tdict_getz(p->tr, p->names, name);
    if (known) return known->s;
    char *z = clime_tr_alloc(p->tr, name.len + 1);
    memcpy(z, name.ptr, name.len);
    z[name.len] = '\0';
    struct clime_tv v = clime_tv_strz(z);
    clime_tdict_set(p->tr, p->names, v, v);
    return z;
}

const char *clime_tparse_name(struct clime_tparser *p) {
    struct clime_str text = p->at->text;
    clime_tparse_expect(p, CLIME_TOK_NAME, "a name");
    return intern(p, text);
}

void clime_tparse_enter(struct clime_tparser *p) {
    if (++p->depth > MAX_DEPTH) clime_tr_fail(p->tr, CLIME_ERR_LIMIT, "nested more than %d deep", MAX_DEPTH);
}

struct clime_tnode *clime_tparse_node(struct clime_tparser *p, enum clime_tnode_kind kind) {
    struct clime_tnode *n = clime_tr_zalloc(p->tr, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = p->at->line;
    return n;
}

void clime_tnodes_push(struct clime_tr *tr, struct clime_tnodes *l, struct clime_tnode *node) {
    if (l->n == l->size) {
        uint32_t size = l->size ? l->size * 2 : 4;
        struct clime_tnode **v = clime_tr_alloc(tr, size * sizeof(struct clime_tnode *));
        if (l->n) memcpy(v, l->v, l->n * sizeof(struct clime_tnode *));
        l->v = v;
        l->size = size;
    }
    l->v[l->n++] = node;
}

static void count_chain(struct clime_tparser *p, int *n) {
    if (++*n > MAX_CHAIN) clime_tr_fail(p->tr, CLIME_ERR_LIMIT, "more than %d operators in a row", MAX_CHAIN);
}

/* ---- calls, filters, tests ---- */

static const struct clime_tcall *parse_call_args(struct clime_tparser *p) {
    struct clime_tcall *call = clime_tr_zalloc(p->tr, sizeof *call);
    struct clime_tnodes pos = {0}, kw_values = {0};
    struct clime_tlist *kw_names = clime_tlist_new(p->tr, 0);
    clime_tparse_expect(p, '(', "'('");
    for (bool first = true; p->at->type != ')'; first = false) {
        if (!first) {
            clime_tparse_expect(p, ',', "','");
            if (p->at->type == ')') break;
        }
        bool bad = false;
        if (clime_tparse_skip(p, '*')) {
            bad = call->star || call->star2;
            call->star = clime_tparse_expr(p);
        } else if (clime_tparse_skip(p, CLIME_TOK_POW)) {
            bad = call->star2;
            call->star2 = clime_tparse_expr(p);
        } else if (p->at->type == CLIME_TOK_NAME && p->at[1].type == '=') {
            bad = call->star2;
            clime_tlist_push(p->tr, kw_names, clime_tv_str(p->tr, next(p)->text));
            next(p);
            clime_tnodes_push(p->tr, &kw_values, clime_tparse_expr(p));
        } else {
            bad = call->star || call->star2 || kw_values.n;
            clime_tnodes_push(p->tr, &pos, clime_tparse_expr(p));
        }
        if (bad) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "invalid syntax for function call expression");
    }
    next(p);
    call->pos = pos.v;
    call->n_pos = pos.n;
    call->n_kw = kw_values.n;
    call->kw = clime_tr_alloc(p->tr, kw_values.n * sizeof *call->kw);
    for (uint32_t i = 0; i < kw_values.n; i++)
        call->kw[i] = (struct clime_tkwnode){clime_tv_text(kw_names->items[i]), kw_values.v[i]};
    return call;
}

static struct clime_tnode *parse_subscript(struct clime_tparser *p, struct clime_tnode *of);

static struct clime_tnode *parse_call(struct clime_tparser *p, struct clime_tnode *callee) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CALL);
    n->a = callee;
    n->call = parse_call_args(p);
    return n;
}

static struct clime_tnode *parse_postfix(struct clime_tparser *p, struct clime_tnode *n) {
    for (int chain = 0;; count_chain(p, &chain)) {
        if (p->at->type == '.' || p->at->type == '[')
            n = parse_subscript(p, n);
        else if (p->at->type == '(')
            n = parse_call(p, n);
        else
            return n;
    }
}

/* Looks the name up among filters or tests; an unknown one is noted for the end of the compilation. */
static void resolve(struct clime_tparser *p, struct clime_tnode *n, const char *what,
                    const struct clime_tbuiltin *(*find)(struct clime_str)) {
    struct clime_str name = p->at->text;
    clime_tparse_expect(p, CLIME_TOK_NAME, "a name");
    while (clime_tparse_skip(p, '.')) { /* "a.b" is one name */
        struct clime_str part = p->at->text;
        clime_tparse_expect(p, CLIME_TOK_NAME, "a name");
        name.len = (size_t)(part.ptr + part.len - name.ptr);
    }
    n->name = intern(p, name);
    n->fn = find(name);
    if (n->fn) return;
    struct clime_tunknown *u = clime_tr_alloc(p->tr, sizeof *u);
    *u = (struct clime_tunknown){p->unknown, what, name, n->line, p->soft};
    p->unknown = u;
}

struct clime_tnode *clime_tparse_filters(struct clime_tparser *p, struct clime_tnode *node, bool start_inline) {
    for (int chain = 0; p->at->type == '|' || start_inline; count_chain(p, &chain)) {
        if (!start_inline) next(p);
        start_inline = false;
        struct clime_tnode *n = clime_tparse_node(p, CLIME_N_FILTER);
        n->a = node;
        resolve(p, n, "filter", clime_tfilter_find);
        if (p->at->type == '(') n->call = parse_call_args(p);
        node = n;
    }
    return node;
}

static bool starts_test_argument(const struct clime_tparser *p) {
    switch (p->at->type) {
    case CLIME_TOK_NAME:
        return !clime_tparse_is_name(p, "else") && !clime_tparse_is_name(p, "or") && !clime_tparse_is_name(p, "and");
    case CLIME_TOK_STRING:
    case CLIME_TOK_NUMBER:
    case '[':
    case '{':
        return true;
    default:
        return false;
    }
}

static struct clime_tnode *parse_test(struct clime_tparser *p, struct clime_tnode *of) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_TEST);
    next(p); /* is */
    bool negated = clime_tparse_skip_name(p, "not");
    n->a = of;
    resolve(p, n, "test", clime_ttest_find);
    if (p->at->type == '(') {
        n->call = parse_call_args(p);
    } else if (starts_test_argument(p)) {
        if (clime_tparse_is_name(p, "is"))
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "You cannot chain multiple tests with is");
        struct clime_tnodes arg = {0};
        clime_tparse_enter(p);
        clime_tnodes_push(p->tr, &arg, parse_postfix(p, parse_primary(p, false)));
        p->depth--;
        struct clime_tcall *call = clime_tr_zalloc(p->tr, sizeof *call);
        call->pos = arg.v;
        call->n_pos = 1;
        n->call = call;
    }
    if (!negated) return n;
    struct clime_tnode *not = clime_tparse_node(p, CLIME_N_NOT);
    not ->a = n;
    return not ;
}

/* ---- primaries ---- */

static struct clime_tnode *parse_subscribed(struct clime_tparser *p) {
    struct clime_tnode *parts[3] = {NULL, NULL, NULL};
    if (p->at->type != ':') {
        parts[0] = clime_tparse_expr(p);
        if (p->at->type != ':') return parts[0];
    }
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_SLICE);
    for (int i = 1; i < 3 && clime_tparse_skip(p, ':'); i++)
        if (p->at->type != ':' && p->at->type != ']' && p->at->type != ',') parts[i] = clime_tparse_expr(p);
    struct clime_tnodes list = {0};
    for (int i = 0; i < 3; i++) clime_tnodes_push(p->tr, &list, parts[i]);
    n->list = list.v;
    n->n = list.n;
    return n;
}

static struct clime_tnode *parse_subscript(struct clime_tparser *p, struct clime_tnode *of) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_ITEM);
    n->a = of;
    if (clime_tparse_skip(p, '.')) {
        const struct clime_ttoken *t = next(p);
        if (t->type == CLIME_TOK_NAME) {
            n->kind = CLIME_N_ATTR;
            n->value = clime_tv_strz(intern(p, t->text));
            return n;
        }
        if (t->type != CLIME_TOK_NUMBER || t->value.kind != CLIME_T_INT)
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "expected name or number");
        n->b = clime_tparse_node(p, CLIME_N_CONST);
        n->b->value = t->value;
        return n;
    }
    next(p); /* [ */
    struct clime_tnodes args = {0};
    while (p->at->type != ']') {
        if (args.n) clime_tparse_expect(p, ',', "','");
        clime_tnodes_push(p->tr, &args, parse_subscribed(p));
    }
    next(p);
    if (args.n == 1 && args.v[0]->kind == CLIME_N_SLICE) {
        args.v[0]->a = of;
        return args.v[0];
    }
    for (uint32_t i = 0; i < args.n; i++)
        if (args.v[i]->kind == CLIME_N_SLICE)
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "a slice among several subscripts is not supported");
    if (args.n == 1) {
        n->b = args.v[0];
    } else {
        n->b = clime_tparse_node(p, CLIME_N_TUPLE);
        n->b->list = args.v;
        n->b->n = args.n;
    }
    return n;
}

static struct clime_tnode *parse_list(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_LIST);
    struct clime_tnodes items = {0};
    next(p);
    while (p->at->type != ']') {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (p->at->type == ']') break;
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
    }
    next(p);
    n->list = items.v;
    n->n = items.n;
    return n;
}

static struct clime_tnode *parse_dict(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_DICT);
    struct clime_tnodes items = {0};
    next(p);
    while (p->at->type != '}') {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (p->at->type == '}') break;
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
        clime_tparse_expect(p, ':', "':'");
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
    }
    next(p);
    n->list = items.v;
    n->n = items.n;
    return n;
}

static struct clime_tnode *parse_name(struct clime_tparser *p, bool with_namespace) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CONST);
    struct clime_str text = next(p)->text;
    if (clime_str_is(text, "true") || clime_str_is(text, "True")) {
        n->value = clime_tv_bool(true);
    } else if (clime_str_is(text, "false") || clime_str_is(text, "False")) {
        n->value = clime_tv_bool(false);
    } else if (clime_str_is(text, "none") || clime_str_is(text, "None")) {
        n->value = clime_tv_none();
    } else {
        n->kind = CLIME_N_NAME;
        n->name = intern(p, text);
        if (n->name == p->t->caller) p->uses |= CLIME_USES_CALLER;
        if (n->name == p->t->kwargs) p->uses |= CLIME_USES_KWARGS;
        if (n->name == p->t->varargs) p->uses |= CLIME_USES_VARARGS;
        if (with_namespace && clime_tparse_skip(p, '.')) {
            n->kind = CLIME_N_NSREF;
            n->value = clime_tv_strz(clime_tparse_name(p));
        }
    }
    return n;
}

static struct clime_tnode *parse_string(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CONST);
    struct clime_str text = next(p)->text;
    while (p->at->type == CLIME_TOK_STRING) text = clime_tr_concat(p->tr, text, next(p)->text);
    n->value = clime_tv_str(p->tr, text);
    return n;
}

static struct clime_tnode *parse_primary(struct clime_tparser *p, bool with_namespace) {
    struct clime_tnode *n;
    switch (p->at->type) {
    case CLIME_TOK_NAME:
        return parse_name(p, with_namespace);
    case CLIME_TOK_STRING:
        return parse_string(p);
    case CLIME_TOK_NUMBER:
        n = clime_tparse_node(p, CLIME_N_CONST);
        n->value = next(p)->value;
        return n;
    case '(':
        next(p);
        n = clime_tparse_tuple(p, CLIME_TUPLE_PARENS, NULL);
        clime_tparse_expect(p, ')', "')'");
        return n;
    case '[':
        return parse_list(p);
    case '{':
        return parse_dict(p);
    default:
        clime_tparse_unexpected(p);
    }
}

/* ---- operators ---- */

static struct clime_tnode *binary(struct clime_tparser *p, enum clime_tnode_kind kind, struct clime_tnode *a,
                                  struct clime_tnode *(*right)(struct clime_tparser *)) {
    struct clime_tnode *n = clime_tparse_node(p, kind);
    n->op = next(p)->type;
    n->a = a;
    n->b = right(p);
    return n;
}

static struct clime_tnode *parse_unary_with(struct clime_tparser *p, bool with_filter) {
    struct clime_tnode *n;
    clime_tparse_enter(p);
    if (p->at->type == '-' || p->at->type == '+') {
        n = clime_tparse_node(p, p->at->type == '-' ? CLIME_N_NEG : CLIME_N_POS);
        next(p);
        n->a = parse_unary_with(p, false);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    for (int chain = 0; with_filter; count_chain(p, &chain)) {
        if (p->at->type == '|')
            n = clime_tparse_filters(p, n, false);
        else if (clime_tparse_is_name(p, "is"))
            n = parse_test(p, n);
        else if (p->at->type == '(')
            n = parse_call(p, n);
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
    for (int chain = 0; p->at->type == CLIME_TOK_POW; count_chain(p, &chain))
        n = binary(p, CLIME_N_BINARY, n, parse_unary);
    return n;
}

static struct clime_tnode *parse_product(struct clime_tparser *p) {
    struct clime_tnode *n = parse_pow(p);
    for (int chain = 0;
         p->at->type == '*' || p->at->type == '/' || p->at->type == '%' || p->at->type == CLIME_TOK_FLOORDIV;
         count_chain(p, &chain))
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
    for (int chain = 0; p->at->type == '+' || p->at->type == '-'; count_chain(p, &chain))
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
        next(p);
        *op = CLIME_CMP_NOT_IN;
        break;
    default:
        return false;
    }
    next(p);
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
    next(p);
    clime_tparse_enter(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static struct clime_tnode *parse_and(struct clime_tparser *p) {
    struct clime_tnode *n = parse_not(p);
    for (int chain = 0; clime_tparse_is_name(p, "and"); count_chain(p, &chain))
        n = binary(p, CLIME_N_AND, n, parse_not);
    return n;
}

static struct clime_tnode *parse_or(struct clime_tparser *p) {
    struct clime_tnode *n = parse_and(p);
    for (int chain = 0; clime_tparse_is_name(p, "or"); count_chain(p, &chain)) n = binary(p, CLIME_N_OR, n, parse_and);
    return n;
}

struct clime_tnode *clime_tparse_expr(struct clime_tparser *p) {
    clime_tparse_enter(p);
    struct clime_tunknown *before = p->unknown;
    struct clime_tnode *n = parse_or(p);
    bool soft = p->soft;
    for (int chain = 0; clime_tparse_skip_name(p, "if"); count_chain(p, &chain)) {
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
        clime_tnodes_push(p->tr, &items, parse_primary(p, with_namespace));
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
