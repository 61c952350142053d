/* The parser's state and the functions that its three parts share: statements, operators, primaries. Internal to
 * parse*.c. */
#ifndef CLIME_TEXT_TEMPLATE_PARSE_H
#define CLIME_TEXT_TEMPLATE_PARSE_H

#include "text/template/ast.h"

/* An unknown filter or test. Jinja rejects it at once, unless it is inside an if. */
struct clime_tunknown {
    struct clime_tunknown *older;
    const char *what;
    struct clime_str name;
    int line;
    bool soft;
};

struct clime_tparser {
    struct clime_tr *tr;
    struct clime_template *t;
    const struct clime_ttoken *at;
    struct clime_tdict *names; /* interned: name -> STR with the pointer */
    int depth;                 /* of nested expressions and statements */
    bool soft;                 /* inside an if of the innermost scope */
    bool in_loop;              /* break and continue are allowed */
    unsigned uses;             /* enum clime_tmacro_uses of the innermost macro */
    struct clime_tunknown *unknown;
};

enum clime_ttuple { CLIME_TUPLE_FULL, CLIME_TUPLE_NO_COND, CLIME_TUPLE_PARENS };

/* ---- expressions (parse_expr.c) ---- */

struct clime_tnode *clime_tparse_expr(struct clime_tparser *p);
struct clime_tnode *clime_tparse_tuple(struct clime_tparser *p, enum clime_ttuple mode, const char *stop);
struct clime_tnode *clime_tparse_target(struct clime_tparser *p, bool with_namespace, const char *stop);

/* ---- tokens, nodes, primaries (parse_primary.c) ---- */

const struct clime_ttoken *clime_tparse_next(struct clime_tparser *p); /* consumes one */
bool clime_tparse_is_name(const struct clime_tparser *p, const char *name);
bool clime_tparse_skip_name(struct clime_tparser *p, const char *name);
bool clime_tparse_skip(struct clime_tparser *p, int type);
void clime_tparse_expect(struct clime_tparser *p, int type, const char *what);
const char *clime_tparse_name(struct clime_tparser *p); /* expects a name, interned */
void clime_tparse_unexpected(struct clime_tparser *p) __attribute__((noreturn));
void clime_tparse_enter(struct clime_tparser *p); /* around recursion; depth-- to leave */
struct clime_tnode *clime_tparse_node(struct clime_tparser *p, enum clime_tnode_kind kind);

void clime_tparse_chain(struct clime_tparser *p, int *n); /* counts one more operator in a row; fails past the limit */

struct clime_tnode *clime_tparse_primary(struct clime_tparser *p, bool with_namespace);
struct clime_tnode *clime_tparse_postfix(struct clime_tparser *p, struct clime_tnode *n); /* . [] () after n */
struct clime_tnode *clime_tparse_call(struct clime_tparser *p, struct clime_tnode *callee);
struct clime_tnode *clime_tparse_test(struct clime_tparser *p, struct clime_tnode *of); /* at `is` */
/* |filter|filter...; start_inline: the first comes without its bar. node may be NULL (clime_teval_filters). */
struct clime_tnode *clime_tparse_filters(struct clime_tparser *p, struct clime_tnode *node, bool start_inline);

/* A growing array of nodes. */
struct clime_tnodes {
    struct clime_tnode **v;
    uint32_t n, size;
};
void clime_tnodes_push(struct clime_tr *tr, struct clime_tnodes *l, struct clime_tnode *node);

#endif
