/* Which variables a scope hides before it sets them. Runs once, after parsing.
 *
 * Jinja decides at compile time where a name lives: one that a scope sets (outside of an if) before reading it belongs
 * to that scope from its beginning, unless a scope around it mentions the name. So in
 *     {% for m in messages %}{{ tools }}{% endfor %}{% set tools = 1 %}
 * the loop sees an undefined `tools`, not the caller's variable. The evaluator resolves scopes at run time; this pass
 * lists the names to enter as missing when it opens a scope.
 */
#include "text/template/parse.h"

/* Names mentioned in one scope, in the order met. */
struct names {
    struct names *parent;
    const char **v;
    size_t n, size;
};

static void add(struct clime_tr *tr, struct names *l, const char *name) {
    if (l->n == l->size) {
        l->size = l->size ? l->size * 2 : 8;
        const char **v = clime_tr_alloc(tr, l->size * sizeof(const char *));
        if (l->n) memcpy(v, l->v, l->n * sizeof(const char *));
        l->v = v;
    }
    l->v[l->n++] = name;
}

static bool knows(struct clime_tr *tr, const struct names *l, const char *name) {
    clime_tr_charge(tr, l->n);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i] == name) return true;
    return false;
}

struct scope {
    struct clime_tr *tr;
    struct names known, hidden;
    bool conditional; /* inside an if */
};

static void mention(struct scope *s, const char *name) {
    if (!knows(s->tr, &s->known, name)) add(s->tr, &s->known, name);
}

static void store(struct scope *s, const char *name) {
    if (knows(s->tr, &s->known, name)) return;
    add(s->tr, &s->known, name);
    bool outside = false;
    for (const struct names *l = s->known.parent; l && !outside; l = l->parent) outside = knows(s->tr, l, name);
    if (!outside && !s->conditional) add(s->tr, &s->hidden, name);
}

static void walk_body(struct scope *s, const struct clime_tbody *body);

/* Everything an expression reads. Its parts are in the same fields whatever its kind. */
static void walk_expr(struct scope *s, const struct clime_tnode *n) {
    if (!n) return;
    if (n->kind == CLIME_N_NAME || n->kind == CLIME_N_NSREF) {
        mention(s, n->name);
        return;
    }
    clime_tr_enter(s->tr);
    walk_expr(s, n->a);
    walk_expr(s, n->b);
    walk_expr(s, n->c);
    for (uint32_t i = 0; i < n->n; i++) walk_expr(s, n->list[i]);
    for (uint32_t i = 0; n->call && i < n->call->n_pos; i++) walk_expr(s, n->call->pos[i]);
    for (uint32_t i = 0; n->call && i < n->call->n_kw; i++) walk_expr(s, n->call->kw[i].value);
    if (n->call) walk_expr(s, n->call->star);
    if (n->call) walk_expr(s, n->call->star2);
    clime_tr_leave(s->tr);
}

/* A target stores names and reads namespaces; as a parameter it only makes its names known. */
static void walk_target(struct scope *s, const struct clime_tnode *n, bool parameter) {
    if (n->kind == CLIME_N_NAME && !parameter)
        store(s, n->name);
    else if (n->kind == CLIME_N_NAME || n->kind == CLIME_N_NSREF)
        mention(s, n->name);
    for (uint32_t i = 0; i < n->n; i++) walk_target(s, n->list[i], parameter);
}

/* Statements of one scope, without the scopes they open. */
static void walk_statement(struct scope *s, const struct clime_tnode *n) {
    bool conditional = s->conditional;
    switch (n->kind) {
    case CLIME_N_PRINT:
        walk_expr(s, n->a);
        break;
    case CLIME_N_FOR:
        walk_expr(s, n->b);
        break;
    case CLIME_N_IF:
        walk_expr(s, n->a);
        s->conditional = true;
        walk_body(s, &n->body);
        walk_body(s, &n->other);
        s->conditional = conditional;
        break;
    case CLIME_N_SET:
        walk_expr(s, n->b);
        walk_target(s, n->a, false);
        break;
    case CLIME_N_SET_BLOCK:
        walk_target(s, n->a, false);
        break;
    case CLIME_N_MACRO:
        store(s, n->name);
        break;
    case CLIME_N_CALL_BLOCK:
        walk_expr(s, n->a);
        break;
    case CLIME_N_FILTER_BLOCK:
        walk_expr(s, n->b);
        break;
    case CLIME_N_WITH:
        for (uint32_t i = 1; i < n->n; i += 2) walk_expr(s, n->list[i]);
        break;
    default:
        break;
    }
}

static void walk_body(struct scope *s, const struct clime_tbody *body) {
    clime_tr_enter(s->tr);
    for (uint32_t i = 0; i < body->n; i++) walk_statement(s, body->nodes[i]);
    clime_tr_leave(s->tr);
}

static void hide_in(struct clime_tr *tr, struct clime_template *t, struct clime_tbody *body, struct names *parent,
                    const struct clime_tnode *opener);

/* Handles the scopes opened by a body's statements; the body's own names are known. */
static void hide_inside(struct clime_tr *tr, struct clime_template *t, const struct clime_tbody *body,
                        struct names *known) {
    for (uint32_t i = 0; i < body->n; i++) {
        struct clime_tnode *n = body->nodes[i];
        if (n->kind == CLIME_N_IF) {
            clime_tr_enter(tr);
            hide_inside(tr, t, &n->body, known);
            hide_inside(tr, t, &n->other, known);
            clime_tr_leave(tr);
            continue;
        }
        if (n->body.n) hide_in(tr, t, &n->body, n->kind == CLIME_N_BLOCK ? NULL : known, n);
        if (n->other.n) hide_in(tr, t, &n->other, known, NULL);
    }
}

static void hide_in(struct clime_tr *tr, struct clime_template *t, struct clime_tbody *body, struct names *parent,
                    const struct clime_tnode *opener) {
    struct scope s = {.tr = tr, .known = {.parent = parent}};
    clime_tr_enter(tr);
    if (opener && opener->kind == CLIME_N_FOR) {
        mention(&s, t->loop);
        walk_target(&s, opener->a, true);
    } else if (opener && (opener->kind == CLIME_N_MACRO || opener->kind == CLIME_N_CALL_BLOCK)) {
        mention(&s, t->caller);
        mention(&s, t->kwargs);
        mention(&s, t->varargs);
        for (uint32_t i = 0; i < opener->n; i++) {
            mention(&s, opener->list[i]->name);
            walk_expr(&s, opener->defaults[i]);
        }
    } else if (opener && opener->kind == CLIME_N_WITH) {
        for (uint32_t i = 0; i < opener->n; i += 2) mention(&s, opener->list[i]->name);
    }
    walk_body(&s, body);
    body->hidden = s.hidden.v;
    body->n_hidden = (uint32_t)s.hidden.n;
    hide_inside(tr, t, body, &s.known);
    clime_tr_leave(tr);
}

void clime_template_hide(struct clime_tr *tr, struct clime_template *t) {
    hide_in(tr, t, &t->body, NULL, NULL);
}
