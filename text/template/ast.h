/* Tokens and syntax tree of a chat template. Internal to text/template/.
 *
 * Everything lives in the template's arena and does not change after compilation. Names are interned: equal names are
 * equal pointers, so that a scope finds a variable by comparing pointers.
 */
#ifndef CLIME_TEXT_TEMPLATE_AST_H
#define CLIME_TEXT_TEMPLATE_AST_H

#include "text/template/value/value.h"

/* ---- tokens ---- */

enum clime_ttype {
    /* Operators of one character are their own character code. */
    CLIME_TOK_EOF = 256,
    CLIME_TOK_DATA,
    CLIME_TOK_VAR_BEGIN,
    CLIME_TOK_VAR_END,
    CLIME_TOK_BLOCK_BEGIN,
    CLIME_TOK_BLOCK_END,
    CLIME_TOK_NAME,
    CLIME_TOK_STRING,
    CLIME_TOK_NUMBER,
    CLIME_TOK_EQ,       /* == */
    CLIME_TOK_NE,       /* != */
    CLIME_TOK_GE,       /* >= */
    CLIME_TOK_LE,       /* <= */
    CLIME_TOK_POW,      /* ** */
    CLIME_TOK_FLOORDIV, /* // */
};

struct clime_ttoken {
    int type;
    int line;
    struct clime_str text; /* DATA and STRING: the text meant; NAME: the name; else as written */
    struct clime_tv value; /* NUMBER */
};

/* Cuts source into tokens, the last one EOF; white-space control is settled here. Fails on a syntax error. */
struct clime_ttoken *clime_template_lex(struct clime_tr *tr, struct clime_str source);

/* ---- tree ---- */

enum clime_tnode_kind {
    /* expressions */
    CLIME_N_CONST,   /* value */
    CLIME_N_NAME,    /* name */
    CLIME_N_NSREF,   /* name.attr as a target: name, value = attr */
    CLIME_N_LIST,    /* list */
    CLIME_N_TUPLE,   /* list */
    CLIME_N_DICT,    /* list: key, value, key, value, ... */
    CLIME_N_ATTR,    /* a.value */
    CLIME_N_ITEM,    /* a[b] */
    CLIME_N_SLICE,   /* a[list[0]:list[1]:list[2]], each may be NULL */
    CLIME_N_CALL,    /* a(call) */
    CLIME_N_FILTER,  /* a|fn(call); a = NULL: the text of the enclosing block */
    CLIME_N_TEST,    /* a is fn(call) */
    CLIME_N_NOT,     /* not a */
    CLIME_N_NEG,     /* -a */
    CLIME_N_POS,     /* +a */
    CLIME_N_BINARY,  /* a op b, op a token type */
    CLIME_N_AND,     /* a and b */
    CLIME_N_OR,      /* a or b */
    CLIME_N_COMPARE, /* a ops[0] list[0] ops[1] list[1] ... */
    CLIME_N_CONCAT,  /* list joined by ~ */
    CLIME_N_COND,    /* a if b else c; c may be NULL */
    /* statements */
    CLIME_N_DATA,         /* value */
    CLIME_N_PRINT,        /* a */
    CLIME_N_FOR,          /* for a in b if c: body else other; flag = recursive */
    CLIME_N_IF,           /* if a: body else other (elif is an IF in other) */
    CLIME_N_SET,          /* a = b */
    CLIME_N_SET_BLOCK,    /* a = body, through the filters b (may be NULL) */
    CLIME_N_MACRO,        /* name, list = parameters (NAME), defaults, body; flag = enum clime_tmacro_uses */
    CLIME_N_CALL_BLOCK,   /* as MACRO without a name; a = the CALL */
    CLIME_N_FILTER_BLOCK, /* body through the filters b */
    CLIME_N_WITH,         /* list: target, value, target, value, ...; body */
    CLIME_N_BLOCK,        /* body */
    CLIME_N_GENERATION,   /* body */
    CLIME_N_BREAK,
    CLIME_N_CONTINUE,
};

enum clime_tcompare {
    CLIME_CMP_EQ,
    CLIME_CMP_NE,
    CLIME_CMP_LT,
    CLIME_CMP_LE,
    CLIME_CMP_GT,
    CLIME_CMP_GE,
    CLIME_CMP_IN,
    CLIME_CMP_NOT_IN
};

enum clime_tmacro_uses { CLIME_USES_CALLER = 1, CLIME_USES_KWARGS = 2, CLIME_USES_VARARGS = 4 };

struct clime_tkwnode {
    struct clime_str name;
    struct clime_tnode *value;
};

/* Arguments of a call as written: f(pos..., *star, kw=..., **star2). */
struct clime_tcall {
    struct clime_tnode **pos;
    struct clime_tkwnode *kw;
    uint32_t n_pos, n_kw;
    struct clime_tnode *star, *star2; /* may be NULL */
};

struct clime_tbody {
    struct clime_tnode **nodes;
    const char **hidden; /* if it opens a scope: names that are missing in it until it sets them */
    uint32_t n, n_hidden;
};

struct clime_tnode {
    uint8_t kind; /* enum clime_tnode_kind, which says what the fields hold */
    uint8_t flag;
    int op;
    int line;
    uint32_t n; /* length of list (of ops, of defaults) */
    const char *name;
    struct clime_tv value;
    struct clime_tnode *a, *b, *c;
    struct clime_tnode **list;
    struct clime_tnode **defaults; /* MACRO: NULL where the parameter has none */
    const uint8_t *ops;            /* COMPARE: enum clime_tcompare */
    struct clime_tbody body, other;
    const struct clime_tcall *call;  /* NULL = no arguments */
    const struct clime_tbuiltin *fn; /* FILTER, TEST; NULL = unknown name, an error if it is ever run */
};

struct clime_template {
    struct clime_arena arena;
    struct clime_tbody body;
    const char *loop, *caller, *kwargs, *varargs; /* interned */
    bool has_generation;
};

/* Parses tokens into t->body. Fails on a syntax error and on unknown filters and tests that will surely be reached. */
void clime_template_parse(struct clime_tr *tr, struct clime_ttoken *tokens, struct clime_template *t);

/* Fills the hidden names of every body that opens a scope (names.c). */
void clime_template_hide(struct clime_tr *tr, struct clime_template *t);

#endif
