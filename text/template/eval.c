/* Expressions of a chat template. Called by exec.c for every expression, on the run's thread.
 *
 * A tree walk, not byte code: the largest published template evaluates some 2,000 nodes a message, which is negligible
 * compared with tokenising the result. Each kind of node has its own out-of-line function, so that the recursive
 * dispatcher needs little stack (limits.max_depth relies on less than 1 KiB a level).
 */
#include "text/template/eval.h"

#include "text/template/builtin.h"
#include "text/template/value/iter.h"

#define OUT_OF_LINE __attribute__((noinline))

typedef struct clime_tv eval_fn(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope);

OUT_OF_LINE static struct clime_tv eval_name(struct clime_tr *tr, const struct clime_tnode *n,
                                             struct clime_tscope *scope) {
    struct clime_tv v = clime_tscope_get(tr, scope, n->name);
    return v.kind == CLIME_T_MISSING ? clime_tv_undefined(tr, v, clime_tv_strz(n->name)) : v;
}

OUT_OF_LINE static struct clime_tv eval_list(struct clime_tr *tr, const struct clime_tnode *n,
                                             struct clime_tscope *scope) {
    struct clime_tlist *l = clime_tlist_new(tr, n->n);
    for (uint32_t i = 0; i < n->n; i++) clime_tlist_push(tr, l, clime_teval(tr, n->list[i], scope));
    return n->kind == CLIME_N_LIST ? clime_tv_list(l) : clime_tv_tuple(l);
}

OUT_OF_LINE static struct clime_tv eval_dict(struct clime_tr *tr, const struct clime_tnode *n,
                                             struct clime_tscope *scope) {
    struct clime_tdict *d = clime_tdict_new(tr);
    for (uint32_t i = 0; i + 1 < n->n; i += 2) {
        struct clime_tv key = clime_teval(tr, n->list[i], scope);
        clime_tdict_set(tr, d, key, clime_teval(tr, n->list[i + 1], scope));
    }
    return clime_tv_dict(d);
}

OUT_OF_LINE static struct clime_tv eval_slice(struct clime_tr *tr, const struct clime_tnode *n,
                                              struct clime_tscope *scope) {
    struct clime_tv obj = clime_teval(tr, n->a, scope), part[3];
    for (int i = 0; i < 3; i++) part[i] = n->list[i] ? clime_teval(tr, n->list[i], scope) : clime_tv_none();
    return clime_tget_slice(tr, obj, part[0], part[1], part[2]);
}

/* ---- calls ---- */

static void add_keyword(struct clime_tr *tr, struct clime_targs *args, size_t *size, struct clime_tkw kw) {
    for (size_t i = 0; i < args->n_kw; i++)
        if (clime_str_eq(args->kw[i].name, kw.name))
            clime_tr_fail(tr, CLIME_ERR_INPUT, "got multiple values for keyword argument '%.*s'",
                          kw.name.len > 100 ? 100 : (int)kw.name.len, kw.name.ptr);
    if (args->n_kw == *size) {
        *size = *size ? *size * 2 : 4;
        struct clime_tkw *more = clime_tr_alloc(tr, *size * sizeof *more);
        if (args->n_kw) memcpy(more, args->kw, args->n_kw * sizeof *more);
        args->kw = more;
    }
    args->kw[args->n_kw++] = kw;
    clime_tr_charge(tr, args->n_kw);
}

OUT_OF_LINE struct clime_targs clime_teval_args(struct clime_tr *tr, const struct clime_tcall *call,
                                                struct clime_tscope *scope) {
    struct clime_targs args = {0};
    if (!call) return args;
    struct clime_tlist *pos = clime_tlist_new(tr, call->n_pos);
    for (uint32_t i = 0; i < call->n_pos; i++) clime_tlist_push(tr, pos, clime_teval(tr, call->pos[i], scope));
    if (call->star) {
        struct clime_tlist *more = clime_titer_items(tr, clime_teval(tr, call->star, scope));
        clime_tr_charge(tr, more->n);
        for (size_t i = 0; i < more->n; i++) clime_tlist_push(tr, pos, more->items[i]);
    }
    args.pos = pos->items;
    args.n_pos = pos->n;
    size_t size = 0;
    for (uint32_t i = 0; i < call->n_kw; i++)
        add_keyword(tr, &args, &size, (struct clime_tkw){call->kw[i].name, clime_teval(tr, call->kw[i].value, scope)});
    if (call->star2) {
        struct clime_tv more = clime_teval(tr, call->star2, scope);
        if (more.kind != CLIME_T_DICT)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "argument after ** must be a mapping, not %s", clime_tv_type(more));
        for (size_t i = 0; i < more.dict->n; i++) {
            struct clime_tentry *e = &more.dict->items[i];
            if (e->key.kind != CLIME_T_STR) clime_tr_fail(tr, CLIME_ERR_INPUT, "keywords must be strings");
            add_keyword(tr, &args, &size, (struct clime_tkw){clime_tv_text(e->key), e->value});
        }
    }
    return args;
}

struct clime_tv clime_tcall(struct clime_tr *tr, struct clime_tv callee, const struct clime_targs *args) {
    switch (callee.kind) {
    case CLIME_T_FUNC:
        return callee.func->fn(tr, clime_tv_kind(CLIME_T_MISSING), args);
    case CLIME_T_METHOD:
        return callee.method->fn->fn(tr, callee.method->self, args);
    case CLIME_T_MACRO:
        return clime_tmacro_call(tr, callee.macro, args);
    case CLIME_T_LOOP:
        return clime_tloop_call(tr, callee.loop, args);
    case CLIME_T_JOINER: {
        bool used = callee.joiner->used;
        clime_targs_bind(tr, "joiner", args, "", 0, NULL);
        callee.joiner->used = true;
        return used ? clime_tv_str(tr, callee.joiner->sep) : clime_tv_strz("");
    }
    case CLIME_T_UNDEFINED:
        clime_tv_fail_undefined(tr, callee);
    default:
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object is not callable", clime_tv_type(callee));
    }
}

OUT_OF_LINE static struct clime_tv eval_call(struct clime_tr *tr, const struct clime_tnode *n,
                                             struct clime_tscope *scope) {
    struct clime_tv callee = clime_teval(tr, n->a, scope);
    struct clime_targs args = clime_teval_args(tr, n->call, scope);
    tr->line = n->line;
    return clime_tcall(tr, callee, &args);
}

static struct clime_tv apply(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tv value,
                             struct clime_tscope *scope) {
    if (!n->fn)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "No %s named '%s'.", n->kind == CLIME_N_TEST ? "test" : "filter", n->name);
    struct clime_targs args = clime_teval_args(tr, n->call, scope);
    tr->line = n->line;
    return n->fn->fn(tr, value, &args);
}

OUT_OF_LINE static struct clime_tv eval_filter(struct clime_tr *tr, const struct clime_tnode *n,
                                               struct clime_tscope *scope) {
    return apply(tr, n, clime_teval(tr, n->a, scope), scope);
}

struct clime_tv clime_teval_filters(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tv value,
                                    struct clime_tscope *scope) {
    clime_tr_enter(tr);
    if (n->a) value = clime_teval_filters(tr, n->a, value, scope);
    value = apply(tr, n, value, scope);
    clime_tr_leave(tr);
    return value;
}

/* ---- operators ---- */

OUT_OF_LINE static struct clime_tv eval_binary(struct clime_tr *tr, const struct clime_tnode *n,
                                               struct clime_tscope *scope) {
    struct clime_tv a = clime_teval(tr, n->a, scope);
    struct clime_tv b = clime_teval(tr, n->b, scope);
    tr->line = n->line;
    return clime_tbinary(tr, n->op, a, b);
}

OUT_OF_LINE static struct clime_tv eval_compare(struct clime_tr *tr, const struct clime_tnode *n,
                                                struct clime_tscope *scope) {
    struct clime_tv a = clime_teval(tr, n->a, scope);
    for (uint32_t i = 0; i < n->n; i++) {
        struct clime_tv b = clime_teval(tr, n->list[i], scope);
        if (!clime_tcompare(tr, n->ops[i], a, b)) return clime_tv_bool(false);
        a = b;
    }
    return clime_tv_bool(true);
}

OUT_OF_LINE static struct clime_tv eval_concat(struct clime_tr *tr, const struct clime_tnode *n,
                                               struct clime_tscope *scope) {
    struct clime_str s = {"", 0};
    for (uint32_t i = 0; i < n->n; i++)
        s = clime_tr_concat(tr, s, clime_tv_to_str(tr, clime_teval(tr, n->list[i], scope)));
    return clime_tv_str(tr, s);
}

OUT_OF_LINE static struct clime_tv eval_cond(struct clime_tr *tr, const struct clime_tnode *n,
                                             struct clime_tscope *scope) {
    if (clime_tv_truth(tr, clime_teval(tr, n->a, scope))) return clime_teval(tr, n->b, scope);
    if (n->c) return clime_teval(tr, n->c, scope);
    return clime_tv_undefined_hint(tr, "the inline if-expression evaluated to false and no else section was defined.");
}

OUT_OF_LINE static struct clime_tv eval_logic(struct clime_tr *tr, const struct clime_tnode *n,
                                              struct clime_tscope *scope) {
    struct clime_tv a = clime_teval(tr, n->a, scope);
    bool decided = clime_tv_truth(tr, a) == (n->kind == CLIME_N_OR);
    return decided ? a : clime_teval(tr, n->b, scope);
}

OUT_OF_LINE static struct clime_tv eval_unary(struct clime_tr *tr, const struct clime_tnode *n,
                                              struct clime_tscope *scope) {
    struct clime_tv v = clime_teval(tr, n->a, scope);
    if (n->kind == CLIME_N_NOT) return clime_tv_bool(!clime_tv_truth(tr, v));
    if (n->kind == CLIME_N_TEST) return clime_tv_bool(clime_tv_truth(tr, apply(tr, n, v, scope)));
    return clime_tnegate(tr, v, n->kind == CLIME_N_NEG);
}

OUT_OF_LINE static struct clime_tv eval_access(struct clime_tr *tr, const struct clime_tnode *n,
                                               struct clime_tscope *scope) {
    struct clime_tv obj = clime_teval(tr, n->a, scope);
    if (n->kind == CLIME_N_ATTR) return clime_tget_attr(tr, obj, n->value);
    return clime_tget_item(tr, obj, clime_teval(tr, n->b, scope));
}

static eval_fn *const EVAL[] = {
    [CLIME_N_NAME] = eval_name,   [CLIME_N_LIST] = eval_list,       [CLIME_N_TUPLE] = eval_list,
    [CLIME_N_DICT] = eval_dict,   [CLIME_N_ATTR] = eval_access,     [CLIME_N_ITEM] = eval_access,
    [CLIME_N_SLICE] = eval_slice, [CLIME_N_CALL] = eval_call,       [CLIME_N_FILTER] = eval_filter,
    [CLIME_N_TEST] = eval_unary,  [CLIME_N_NOT] = eval_unary,       [CLIME_N_NEG] = eval_unary,
    [CLIME_N_POS] = eval_unary,   [CLIME_N_BINARY] = eval_binary,   [CLIME_N_AND] = eval_logic,
    [CLIME_N_OR] = eval_logic,    [CLIME_N_COMPARE] = eval_compare, [CLIME_N_CONCAT] = eval_concat,
    [CLIME_N_COND] = eval_cond,
};

struct clime_tv clime_teval(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    if (n->kind == CLIME_N_CONST) return n->value;
    CHECK(n->kind < CLIME_COUNT(EVAL) && EVAL[n->kind]);
    tr->line = n->line;
    clime_tr_enter(tr);
    struct clime_tv v = EVAL[n->kind](tr, n, scope);
    clime_tr_leave(tr);
    return v;
}
