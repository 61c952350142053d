/* Statements of a chat template: output, loops, assignments, macros. Called by template.c, on the run's thread.
 *
 * Scopes follow Jinja: for, macro, with, call, filter, set-block and generation open one, `if` does not, and setting a
 * variable never affects an outer scope (namespaces do that).
 *
 * A loop reuses one scope and empties it at each iteration: a macro defined in the body therefore sees the last
 * iteration's variables after the loop, like a Python closure.
 */
#include <stdlib.h>

#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

/* ---- scopes ---- */

static struct clime_tscope *scope_new(struct clime_tr *tr, struct clime_tscope *parent) {
    struct clime_tscope *s = clime_tr_zalloc(tr, sizeof *s);
    s->parent = parent;
    return s;
}

static void scope_set(struct clime_tr *tr, struct clime_tscope *scope, const char *name, struct clime_tv v) {
    for (size_t i = 0; i < scope->n; i++) {
        if (scope->vars[i].name != name) continue;
        scope->vars[i].value = v;
        return;
    }
    if (scope->n == scope->size) {
        size_t size = scope->size ? scope->size * 2 : 4;
        struct clime_tvar *vars = clime_tr_alloc(tr, size * sizeof *vars);
        if (scope->n) memcpy(vars, scope->vars, scope->n * sizeof *vars);
        scope->vars = vars;
        scope->size = size;
    }
    scope->vars[scope->n++] = (struct clime_tvar){name, v};
}

static void hide(struct clime_tr *tr, struct clime_tscope *scope, const struct clime_tbody *body) {
    for (uint32_t i = 0; i < body->n_hidden; i++) scope_set(tr, scope, body->hidden[i], clime_tv_kind(CLIME_T_MISSING));
}

struct clime_tscope *clime_tscope_open(struct clime_tr *tr, struct clime_tscope *parent,
                                       const struct clime_tbody *body) {
    struct clime_tscope *s = scope_new(tr, parent);
    hide(tr, s, body);
    return s;
}

struct clime_tv clime_tscope_get(struct clime_tr *tr, struct clime_tscope *scope, const char *name) {
    for (; scope; scope = scope->parent) {
        for (size_t i = 0; i < scope->n; i++)
            if (scope->vars[i].name == name) return scope->vars[i].value;
        clime_tr_charge(tr, 1);
    }
    struct clime_str text = clime_str_of(name);
    struct clime_tv *v = clime_tdict_getz(tr, tr->env->vars, text);
    if (v) return *v;
    const struct clime_tbuiltin *fn = clime_tglobal_find(text);
    if (fn) return (struct clime_tv){.kind = CLIME_T_FUNC, .func = fn};
    return clime_tv_kind(CLIME_T_MISSING);
}

static void set_attribute(struct clime_tr *tr, const struct clime_tnode *target, struct clime_tv v,
                          struct clime_tscope *scope) {
    struct clime_tv ns = clime_tscope_get(tr, scope, target->name);
    if (ns.kind != CLIME_T_NAMESPACE)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "cannot assign attribute on non-namespace object");
    if (target->value.s[0] == '_')
        clime_tr_fail(tr, CLIME_ERR_INPUT, "cannot store the underscore-prefixed attribute '%s' on a namespace",
                      target->value.s);
    clime_tdict_set(tr, ns.dict, target->value, v);
}

static void assign(struct clime_tr *tr, const struct clime_tnode *target, struct clime_tv v,
                   struct clime_tscope *scope) {
    if (target->kind == CLIME_N_NAME) {
        scope_set(tr, scope, target->name, v);
        return;
    }
    if (target->kind == CLIME_N_NSREF) {
        set_attribute(tr, target, v, scope);
        return;
    }
    struct clime_tlist *l = clime_titer_items(tr, v);
    if (l->n != target->n)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "%s values to unpack (expected %u, got %zu)",
                      l->n > target->n ? "too many" : "not enough", target->n, l->n);
    for (uint32_t i = 0; i < target->n; i++) assign(tr, target->list[i], l->items[i], scope);
}

/* ---- output ---- */

/* Runs body with its output captured, in scope. The parser ensures that no break or continue leaves it. */
static struct clime_tv capture(struct clime_tr *tr, const struct clime_tbody *body, struct clime_tscope *scope) {
    struct clime_tout text = {0}, *outer = tr->env->out;
    tr->env->out = &text;
    clime_texec(tr, body, scope);
    tr->env->out = outer;
    return clime_tv_out(tr, &text);
}

static void print(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    clime_tv_print(tr, tr->env->out, clime_teval(tr, n->a, scope));
}

static void add_span(struct clime_spans *s, size_t begin, size_t end) {
    if (s->n == s->size) {
        s->size = s->size ? s->size * 2 : 8;
        s->data = xrealloc(s->data, s->size * sizeof *s->data);
    }
    s->data[s->n++] = (struct clime_span){begin, end};
}

static void exec_generation(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tenv *env = tr->env;
    if (!env->spans) {
        clime_texec(tr, &n->body, clime_tscope_open(tr, scope, &n->body));
        return;
    }
    /* Inside a macro or set block the text's place in the output is not known yet; a wrong span would train on the
     * wrong tokens. */
    if (env->out != env->top)
        clime_tr_fail(tr, CLIME_ERR_INPUT,
                      "a generation block inside a macro or captured block has no place to report");
    size_t begin = env->top->sink->len;
    clime_texec(tr, &n->body, clime_tscope_open(tr, scope, &n->body));
    add_span(env->spans, begin - env->base, env->top->sink->len - env->base);
}

/* ---- loops ---- */

/* The items of a for loop's iterable that pass its `if`, tested at their turn. */
struct filtered {
    struct clime_titer base;
    struct clime_titer *from;
    const struct clime_tnode *node;
    struct clime_tscope *scope;
};

static bool next_filtered(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    struct filtered *f = (struct filtered *)it;
    while (clime_titer_next(tr, f->from, out)) {
        f->scope->n = 0;
        assign(tr, f->node->a, *out, f->scope);
        if (clime_tv_truth(tr, clime_teval(tr, f->node->c, f->scope))) return true;
    }
    return false;
}

static struct clime_tv filter_items(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tv items,
                                    struct clime_tscope *scope) {
    struct filtered *f = clime_tr_zalloc(tr, sizeof *f);
    f->base.next = next_filtered;
    f->from = clime_titer_new(tr, items);
    f->node = n;
    f->scope = scope_new(tr, scope);
    return clime_titer_value(&f->base);
}

/* Gives the flow of its `else`, whose break and continue belong to the loop around this one. */
static enum clime_tflow exec_for(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tv items,
                                 struct clime_tscope *scope, int depth0) {
    const struct clime_tv missing = clime_tv_kind(CLIME_T_MISSING);
    if (n->c) items = filter_items(tr, n, items, scope);
    struct clime_tloop *loop = clime_tr_alloc(tr, sizeof *loop);
    *loop = (struct clime_tloop){items,  clime_titer_new(tr, items), -1,   -1, missing, missing, missing, missing,
                                 depth0, n->flag ? n : NULL,         scope};
    struct clime_tscope *inner = scope_new(tr, scope);
    struct clime_tv item, self = {.kind = CLIME_T_LOOP, .loop = loop};
    bool completed = false; /* a turn ran to its end; Jinja decides on `else` by this, not by the number of items */
    while (clime_tloop_next(tr, loop, &item)) {
        inner->n = 0;
        scope_set(tr, inner, tr->env->t->loop, self);
        hide(tr, inner, &n->body);
        assign(tr, n->a, item, inner);
        enum clime_tflow flow = clime_texec(tr, &n->body, inner);
        if (flow == CLIME_FLOW_BREAK) break;
        if (flow == CLIME_FLOW_NEXT) completed = true;
    }
    if (completed || !n->other.n) return CLIME_FLOW_NEXT;
    return clime_texec(tr, &n->other, clime_tscope_open(tr, scope, &n->other));
}

struct clime_tv clime_tloop_call(struct clime_tr *tr, struct clime_tloop *loop, const struct clime_targs *args) {
    struct clime_tv items;
    if (!loop->recursive)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "The loop must have the 'recursive' marker to be called recursively.");
    clime_targs_bind(tr, "loop", args, "iterable", 1, &items);
    struct clime_tout text = {0}, *outer = tr->env->out;
    clime_tr_enter(tr);
    tr->env->out = &text;
    exec_for(tr, loop->recursive, items, loop->scope, loop->depth0 + 1);
    tr->env->out = outer;
    clime_tr_leave(tr);
    return clime_tv_out(tr, &text);
}

/* ---- macros ---- */

/* Takes the keyword argument name out of kw[n]; MISSING when it is not there. */
static struct clime_tv take_keyword(struct clime_tkw *kw, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (!kw[i].name.ptr || !clime_str_is(kw[i].name, name)) continue;
        kw[i].name.ptr = NULL;
        return kw[i].value;
    }
    return clime_tv_kind(CLIME_T_MISSING);
}

/* Binds the remaining arguments to the special variables, or fails. */
static void bind_rest(struct clime_tr *tr, const struct clime_tnode *n, const struct clime_targs *args,
                      struct clime_tkw *kw, struct clime_tscope *scope) {
    const char *name = n->name ? n->name : "caller";
    struct clime_tdict *kwargs = clime_tdict_new(tr);
    for (size_t i = 0; i < args->n_kw; i++) {
        if (!kw[i].name.ptr) continue;
        if (!(n->flag & CLIME_USES_KWARGS))
            clime_tr_fail(tr, CLIME_ERR_INPUT, "macro '%s' takes no keyword argument '%.*s'", name,
                          kw[i].name.len > 100 ? 100 : (int)kw[i].name.len, kw[i].name.ptr);
        clime_tdict_set(tr, kwargs, clime_tv_str(tr, kw[i].name), kw[i].value);
    }
    if (n->flag & CLIME_USES_KWARGS) scope_set(tr, scope, tr->env->t->kwargs, clime_tv_dict(kwargs));
    size_t rest = args->n_pos > n->n ? args->n_pos - n->n : 0;
    if (n->flag & CLIME_USES_VARARGS) {
        struct clime_tlist *l = clime_tlist_new(tr, rest);
        for (size_t i = 0; i < rest; i++) clime_tlist_push(tr, l, args->pos[n->n + i]);
        scope_set(tr, scope, tr->env->t->varargs, clime_tv_tuple(l));
    } else if (rest) {
        clime_tr_fail(tr, CLIME_ERR_INPUT, "macro '%s' takes not more than %u argument(s)", name, n->n);
    }
}

static void bind_parameters(struct clime_tr *tr, const struct clime_tnode *n, const struct clime_targs *args,
                            struct clime_tscope *scope) {
    struct clime_tkw *kw = clime_tr_alloc(tr, args->n_kw * sizeof *kw);
    if (args->n_kw) memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    bool explicit_caller = false;
    struct clime_tv *given = clime_tr_alloc(tr, n->n * sizeof *given);
    for (uint32_t i = 0; i < n->n; i++) {
        const char *name = n->list[i]->name;
        if (name == tr->env->t->caller) explicit_caller = true;
        given[i] = i < args->n_pos ? args->pos[i] : take_keyword(kw, args->n_kw, name);
    }
    if ((n->flag & CLIME_USES_CALLER) && !explicit_caller) {
        struct clime_tv caller = take_keyword(kw, args->n_kw, "caller");
        if (!clime_targ_given(caller)) caller = clime_tv_undefined_hint(tr, "No caller defined");
        scope_set(tr, scope, tr->env->t->caller, caller);
    }
    bind_rest(tr, n, args, kw, scope);
    /* Parameters are known to the defaults of those after them; those not yet bound are undefined. */
    for (uint32_t i = 0; i < n->n; i++) scope_set(tr, scope, n->list[i]->name, given[i]);
    for (uint32_t i = 0; i < n->n; i++) {
        if (given[i].kind != CLIME_T_MISSING) continue;
        struct clime_tv v;
        if (n->defaults[i]) {
            v = clime_teval(tr, n->defaults[i], scope);
        } else {
            struct clime_tout hint = {0};
            clime_tout_adds(tr, &hint, "parameter '");
            clime_tout_adds(tr, &hint, n->list[i]->name);
            clime_tout_add(tr, &hint, "' was not provided", sizeof "' was not provided");
            v = clime_tv_undefined_hint(tr, hint.data);
        }
        scope_set(tr, scope, n->list[i]->name, v);
    }
}

struct clime_tv clime_tmacro_call(struct clime_tr *tr, const struct clime_tmacro *m, const struct clime_targs *args) {
    int line = tr->line;
    clime_tr_enter(tr);
    struct clime_tscope *scope = scope_new(tr, m->scope);
    hide(tr, scope, &m->node->body);
    bind_parameters(tr, m->node, args, scope);
    struct clime_tv text = capture(tr, &m->node->body, scope);
    clime_tr_leave(tr);
    tr->line = line;
    return text;
}

static struct clime_tv make_macro(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tmacro *m = clime_tr_alloc(tr, sizeof *m);
    *m = (struct clime_tmacro){n->name, n, scope};
    return (struct clime_tv){.kind = CLIME_T_MACRO, .macro = m};
}

static void exec_call_block(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tv callee = clime_teval(tr, n->a->a, scope);
    struct clime_targs args = clime_teval_args(tr, n->a->call, scope);
    struct clime_tkw *kw = clime_tr_alloc(tr, (args.n_kw + 1) * sizeof *kw);
    if (args.n_kw) memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    kw[args.n_kw] = (struct clime_tkw){clime_str_of("caller"), make_macro(tr, n, scope)};
    args.kw = kw;
    args.n_kw++;
    clime_tv_print(tr, tr->env->out, clime_tcall(tr, callee, &args));
}

/* ---- the rest ---- */

static enum clime_tflow exec_if(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    for (;;) { /* a chain of elif is walked, not recursed into */
        if (clime_tv_truth(tr, clime_teval(tr, n->a, scope))) return clime_texec(tr, &n->body, scope);
        if (n->other.n != 1 || n->other.nodes[0]->kind != CLIME_N_IF) return clime_texec(tr, &n->other, scope);
        n = n->other.nodes[0];
    }
}

static void exec_set_block(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tscope *inner = clime_tscope_open(tr, scope, &n->body);
    struct clime_tv text = capture(tr, &n->body, inner);
    assign(tr, n->a, n->b ? clime_teval_filters(tr, n->b, text, inner) : text, scope);
}

static void exec_filter_block(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tscope *inner = clime_tscope_open(tr, scope, &n->body);
    struct clime_tv text = capture(tr, &n->body, inner);
    clime_tv_print(tr, tr->env->out, clime_teval_filters(tr, n->b, text, inner));
}

static enum clime_tflow exec_with(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    struct clime_tscope *inner = clime_tscope_open(tr, scope, &n->body);
    /* The values are those outside of the block, whatever the targets are called. */
    for (uint32_t i = 0; i + 1 < n->n; i += 2) assign(tr, n->list[i], clime_teval(tr, n->list[i + 1], scope), inner);
    return clime_texec(tr, &n->body, inner);
}

static enum clime_tflow exec_node(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope) {
    tr->line = n->line;
    switch (n->kind) {
    case CLIME_N_DATA:
        clime_tout_str(tr, tr->env->out, clime_tv_text(n->value));
        break;
    case CLIME_N_PRINT:
        print(tr, n, scope);
        break;
    case CLIME_N_FOR:
        return exec_for(tr, n, clime_teval(tr, n->b, scope), scope, 0);
    case CLIME_N_IF:
        return exec_if(tr, n, scope);
    case CLIME_N_SET:
        assign(tr, n->a, clime_teval(tr, n->b, scope), scope);
        break;
    case CLIME_N_SET_BLOCK:
        exec_set_block(tr, n, scope);
        break;
    case CLIME_N_MACRO:
        scope_set(tr, scope, n->name, make_macro(tr, n, scope));
        break;
    case CLIME_N_CALL_BLOCK:
        exec_call_block(tr, n, scope);
        break;
    case CLIME_N_FILTER_BLOCK:
        exec_filter_block(tr, n, scope);
        break;
    case CLIME_N_WITH:
        return exec_with(tr, n, scope);
    case CLIME_N_BLOCK:
        clime_texec(tr, &n->body, clime_tscope_open(tr, tr->env->root, &n->body));
        break;
    case CLIME_N_GENERATION:
        exec_generation(tr, n, scope);
        break;
    case CLIME_N_BREAK:
        return CLIME_FLOW_BREAK;
    case CLIME_N_CONTINUE:
        return CLIME_FLOW_CONTINUE;
    default:
        CHECK(!"a statement");
    }
    return CLIME_FLOW_NEXT;
}

enum clime_tflow clime_texec(struct clime_tr *tr, const struct clime_tbody *body, struct clime_tscope *scope) {
    enum clime_tflow flow = CLIME_FLOW_NEXT;
    clime_tr_enter(tr);
    for (uint32_t i = 0; i < body->n && flow == CLIME_FLOW_NEXT; i++) {
        clime_tr_charge(tr, 1);
        flow = exec_node(tr, body->nodes[i], scope);
    }
    clime_tr_leave(tr);
    return flow;
}
