/* The evaluator of chat templates: statements, expressions, attribute access, operators, calls. Internal to
 * text/template/. One run, one thread; all state hangs off struct clime_tr.
 */
#ifndef CLIME_TEXT_TEMPLATE_EVAL_H
#define CLIME_TEXT_TEMPLATE_EVAL_H

#include "text/template/ast.h"
#include "text/template/spans.h"

struct clime_template;

struct clime_tvar {
    const char *name; /* interned */
    struct clime_tv value;
};

/* Variables set at one level. for, macro, with, call, filter, set and generation blocks open one; if does not.
 * It lives in the arena since a macro may outlive the loop body it was defined in. */
struct clime_tscope {
    struct clime_tscope *parent; /* NULL: the template's own level */
    struct clime_tvar *vars;
    size_t n, size;
};

/* What one rendering holds besides memory. */
struct clime_tenv {
    const struct clime_template *t;
    struct clime_tdict *vars; /* from the caller */
    struct clime_tscope *root;
    struct clime_tout *out;    /* where output goes now; captures replace it */
    struct clime_tout *top;    /* the caller's buffer */
    size_t base;               /* its length when rendering began */
    struct clime_spans *spans; /* may be NULL. Its memory is not the run's: it grows by realloc, owned by the caller */
    int64_t now;
};

enum clime_tflow { CLIME_FLOW_NEXT, CLIME_FLOW_BREAK, CLIME_FLOW_CONTINUE };

/* ---- statements (exec.c) ---- */

enum clime_tflow clime_texec(struct clime_tr *tr, const struct clime_tbody *body, struct clime_tscope *scope);
struct clime_tv clime_tloop_call(struct clime_tr *tr, struct clime_tloop *loop, const struct clime_targs *args);
struct clime_tv clime_tmacro_call(struct clime_tr *tr, const struct clime_tmacro *m, const struct clime_targs *args);

/* A new scope for body, with the names that body hides. */
struct clime_tscope *clime_tscope_open(struct clime_tr *tr, struct clime_tscope *parent,
                                       const struct clime_tbody *body);
struct clime_tv clime_tscope_get(struct clime_tr *tr, struct clime_tscope *scope, const char *name);

/* ---- expressions (eval.c) ---- */

struct clime_tv clime_teval(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tscope *scope);
struct clime_targs clime_teval_args(struct clime_tr *tr, const struct clime_tcall *call, struct clime_tscope *scope);
struct clime_tv clime_tcall(struct clime_tr *tr, struct clime_tv callee, const struct clime_targs *args);
/* A chain of filters over value; n->a of the innermost is NULL. */
struct clime_tv clime_teval_filters(struct clime_tr *tr, const struct clime_tnode *n, struct clime_tv value,
                                    struct clime_tscope *scope);

/* ---- access (access.c) ---- */

struct clime_tv clime_tget_attr(struct clime_tr *tr, struct clime_tv obj, struct clime_tv name); /* obj.name */
struct clime_tv clime_tget_item(struct clime_tr *tr, struct clime_tv obj, struct clime_tv key);  /* obj[key] */
/* obj[start:stop:step]; NONE where left out. */
struct clime_tv clime_tget_slice(struct clime_tr *tr, struct clime_tv obj, struct clime_tv start, struct clime_tv stop,
                                 struct clime_tv step);

/* ---- operators (ops.c) ---- */

struct clime_tv clime_tbinary(struct clime_tr *tr, int op, struct clime_tv a, struct clime_tv b); /* op: token type */
struct clime_tv clime_tnegate(struct clime_tr *tr, struct clime_tv v, bool minus);
bool clime_tcompare(struct clime_tr *tr, enum clime_tcompare op, struct clime_tv a, struct clime_tv b);

#endif
