/* The parser's tokens and nodes, and what expressions are made of: literals, names, subscripts, calls, filters, tests.
 * Called by the other two parts of the parser while compiling.
 */
#include "text/template/builtin.h"
#include "text/template/parse.h"

#define MAX_DEPTH 300
#define MAX_CHAIN 500

/* ---- tokens and nodes ---- */

bool clime_tparse_is_name(const struct clime_tparser *p, const char *name) {
    return p->at->type == CLIME_TOK_NAME && clime_str_is(p->at->text, name);
}

const struct clime_ttoken *clime_tparse_next(struct clime_tparser *p) {
    const struct clime_ttoken *t = p->at;
    if (t->type != CLIME_TOK_EOF) p->at++;
    p->tr->line = p->at->line;
    return t;
}

bool clime_tparse_skip_name(struct clime_tparser *p, const char *name) {
    if (!clime_tparse_is_name(p, name)) return false;
    clime_tparse_next(p);
    return true;
}

bool clime_tparse_skip(struct clime_tparser *p, int type) {
    if (p->at->type != type) return false;
    clime_tparse_next(p);
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

void clime_tparse_chain(struct clime_tparser *p, int *n) {
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
            clime_tlist_push(p->tr, kw_names, clime_tv_str(p->tr, clime_tparse_next(p)->text));
            clime_tparse_next(p);
            clime_tnodes_push(p->tr, &kw_values, clime_tparse_expr(p));
        } else {
            bad = call->star || call->star2 || kw_values.n;
            clime_tnodes_push(p->tr, &pos, clime_tparse_expr(p));
        }
        if (bad) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "invalid syntax for function call expression");
    }
    clime_tparse_next(p);
    call->pos = pos.v;
    call->n_pos = pos.n;
    call->n_kw = kw_values.n;
    call->kw = clime_tr_alloc(p->tr, kw_values.n * sizeof *call->kw);
    for (uint32_t i = 0; i < kw_values.n; i++)
        call->kw[i] = (struct clime_tkwnode){clime_tv_text(kw_names->items[i]), kw_values.v[i]};
    return call;
}

static struct clime_tnode *parse_subscript(struct clime_tparser *p, struct clime_tnode *of);

struct clime_tnode *clime_tparse_call(struct clime_tparser *p, struct clime_tnode *callee) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CALL);
    n->a = callee;
    n->call = parse_call_args(p);
    return n;
}

struct clime_tnode *clime_tparse_postfix(struct clime_tparser *p, struct clime_tnode *n) {
    for (int chain = 0;; clime_tparse_chain(p, &chain)) {
        if (p->at->type == '.' || p->at->type == '[')
            n = parse_subscript(p, n);
        else if (p->at->type == '(')
            n = clime_tparse_call(p, n);
        else
            return n;
    }
}

/* Looks the name up among filters or tests; an unknown one is recorded for the end of compilation. */
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
    for (int chain = 0; p->at->type == '|' || start_inline; clime_tparse_chain(p, &chain)) {
        if (!start_inline) clime_tparse_next(p);
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

struct clime_tnode *clime_tparse_test(struct clime_tparser *p, struct clime_tnode *of) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_TEST);
    clime_tparse_next(p); /* is */
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
        clime_tnodes_push(p->tr, &arg, clime_tparse_postfix(p, clime_tparse_primary(p, false)));
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
        const struct clime_ttoken *t = clime_tparse_next(p);
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
    clime_tparse_next(p); /* [ */
    struct clime_tnodes args = {0};
    while (p->at->type != ']') {
        if (args.n) clime_tparse_expect(p, ',', "','");
        clime_tnodes_push(p->tr, &args, parse_subscribed(p));
    }
    clime_tparse_next(p);
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
    clime_tparse_next(p);
    while (p->at->type != ']') {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (p->at->type == ']') break;
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
    }
    clime_tparse_next(p);
    n->list = items.v;
    n->n = items.n;
    return n;
}

static struct clime_tnode *parse_dict(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_DICT);
    struct clime_tnodes items = {0};
    clime_tparse_next(p);
    while (p->at->type != '}') {
        if (items.n) clime_tparse_expect(p, ',', "','");
        if (p->at->type == '}') break;
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
        clime_tparse_expect(p, ':', "':'");
        clime_tnodes_push(p->tr, &items, clime_tparse_expr(p));
    }
    clime_tparse_next(p);
    n->list = items.v;
    n->n = items.n;
    return n;
}

static struct clime_tnode *parse_name(struct clime_tparser *p, bool with_namespace) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CONST);
    struct clime_str text = clime_tparse_next(p)->text;
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
    struct clime_str text = clime_tparse_next(p)->text;
    while (p->at->type == CLIME_TOK_STRING) text = clime_tr_concat(p->tr, text, clime_tparse_next(p)->text);
    n->value = clime_tv_str(p->tr, text);
    return n;
}

struct clime_tnode *clime_tparse_primary(struct clime_tparser *p, bool with_namespace) {
    struct clime_tnode *n;
    switch (p->at->type) {
    case CLIME_TOK_NAME:
        return parse_name(p, with_namespace);
    case CLIME_TOK_STRING:
        return parse_string(p);
    case CLIME_TOK_NUMBER:
        n = clime_tparse_node(p, CLIME_N_CONST);
        n->value = clime_tparse_next(p)->value;
        return n;
    case '(':
        clime_tparse_next(p);
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
