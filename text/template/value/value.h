/* Python values as a chat template sees them: kinds, making, equality, order, text.
 *
 * Internal to text/template/. A struct clime_tv is 16 bytes and passed by value; what it points to lives in the
 * run's arena (constants: in the template's arena) and is immutable, except namespaces, iterators, loops, cyclers and
 * joiners. Since lists and dicts cannot be changed, copies share their items.
 */
#ifndef CLIME_TEXT_TEMPLATE_VALUE_VALUE_H
#define CLIME_TEXT_TEMPLATE_VALUE_VALUE_H

#include <stdint.h>

#include "text/template/value/run.h"

enum clime_tkind {
    CLIME_T_MISSING, /* no value at all (an absent argument); never seen by a template */
    CLIME_T_UNDEFINED,
    CLIME_T_NONE,
    CLIME_T_BOOL,
    CLIME_T_INT,
    CLIME_T_BIGINT, /* an integer past 64 bits from the input: decimal text, for printing and comparing only */
    CLIME_T_FLOAT,
    CLIME_T_STR,
    CLIME_T_LIST,
    CLIME_T_TUPLE,
    CLIME_T_DICT,
    CLIME_T_VIEW, /* dict.keys(), values(), items() */
    CLIME_T_RANGE,
    CLIME_T_ITER, /* a generator: can be walked once */
    CLIME_T_NAMESPACE,
    CLIME_T_LOOP,
    CLIME_T_MACRO,
    CLIME_T_FUNC,   /* a function of the environment */
    CLIME_T_METHOD, /* a function bound to a value */
    CLIME_T_CYCLER,
    CLIME_T_JOINER,
};

enum clime_tview { CLIME_VIEW_KEYS, CLIME_VIEW_VALUES, CLIME_VIEW_ITEMS };

struct clime_tv {
    uint8_t kind;
    uint8_t flag; /* STR: 1 = Markup. VIEW: enum clime_tview. TUPLE: 1 = a group of groupby (.grouper, .list) */
    uint32_t len; /* STR, BIGINT: bytes */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* UTF-8, not NUL-terminated */
        struct clime_tundef *undef;
        struct clime_tlist *list; /* LIST, TUPLE */
        struct clime_tdict *dict; /* DICT, VIEW, NAMESPACE */
        struct clime_trange *range;
        struct clime_titer *iter;
        struct clime_tloop *loop;
        struct clime_tmacro *macro;
        const struct clime_tbuiltin *func;
        struct clime_tmethod *method;
        struct clime_tcycler *cycler;
        struct clime_tjoiner *joiner;
    };
};

struct clime_tundef {
    const char *hint;    /* the whole message, or NULL: made of obj and name */
    struct clime_tv obj; /* the object accessed; MISSING for a variable */
    struct clime_tv name;
};

struct clime_tlist {
    struct clime_tv *items;
    size_t n, size;
};

struct clime_tentry {
    struct clime_tv key, value;
    uint64_t hash;
};

struct clime_tdict {
    struct clime_tentry *items; /* in insertion order */
    size_t n, size;
    uint32_t *index; /* open addressing, entry number + 1; NULL while n is small */
    size_t n_index;  /* a power of two */
};

struct clime_trange {
    int64_t start, stop, step;
};

struct clime_tkw {
    struct clime_str name;
    struct clime_tv value;
};

struct clime_targs {
    struct clime_tv *pos;
    size_t n_pos;
    struct clime_tkw *kw;
    size_t n_kw;
};

/* Filters, tests, methods and global functions all have this shape; self is the value before the bar, the object of
 * the method, or MISSING. */
typedef struct clime_tv clime_tfn(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args);

struct clime_tbuiltin {
    const char *name;
    clime_tfn *fn;
};

struct clime_tmethod {
    struct clime_tv self;
    const struct clime_tbuiltin *fn;
};

/* A macro, or the caller() of a call block: a node and the scope it was defined in. */
struct clime_tmacro {
    const char *name; /* NULL: caller() */
    const struct clime_tnode *node;
    struct clime_tscope *scope;
};

struct clime_tcycler {
    struct clime_tlist *items;
    size_t pos;
};

struct clime_tjoiner {
    struct clime_str sep;
    bool used;
};

/* ---- making ---- */

static inline struct clime_tv clime_tv_kind(enum clime_tkind k) {
    return (struct clime_tv){.kind = (uint8_t)k};
}
static inline struct clime_tv clime_tv_none(void) {
    return clime_tv_kind(CLIME_T_NONE);
}
static inline struct clime_tv clime_tv_bool(bool b) {
    return (struct clime_tv){.kind = CLIME_T_BOOL, .b = b};
}
static inline struct clime_tv clime_tv_int(int64_t i) {
    return (struct clime_tv){.kind = CLIME_T_INT, .i = i};
}
static inline struct clime_tv clime_tv_float(double f) {
    return (struct clime_tv){.kind = CLIME_T_FLOAT, .f = f};
}
struct clime_tv clime_tv_str(struct clime_tr *tr, struct clime_str s); /* borrows; fails past 4 GiB */
struct clime_tv clime_tv_strz(const char *z);                          /* borrows a literal */
struct clime_tv clime_tv_out(struct clime_tr *tr, const struct clime_tout *o);
struct clime_tv clime_tv_undefined(struct clime_tr *tr, struct clime_tv obj, struct clime_tv name);
struct clime_tv clime_tv_undefined_hint(struct clime_tr *tr, const char *hint);
struct clime_tv clime_tv_list(struct clime_tlist *l);
struct clime_tv clime_tv_tuple(struct clime_tlist *l);
struct clime_tv clime_tv_dict(struct clime_tdict *d);
struct clime_tv clime_tv_pair(struct clime_tr *tr, struct clime_tv a, struct clime_tv b); /* a tuple of two */

static inline struct clime_str clime_tv_text(struct clime_tv v) {
    return (struct clime_str){v.s, v.len};
} /* STR */
static inline bool clime_tv_is_markup(struct clime_tv v) {
    return v.kind == CLIME_T_STR && v.flag;
}
static inline bool clime_tv_is_int(struct clime_tv v) {
    return v.kind == CLIME_T_INT || v.kind == CLIME_T_BOOL;
}
static inline int64_t clime_tv_as_int(struct clime_tv v) {
    return v.kind == CLIME_T_BOOL ? v.b : v.i;
}
bool clime_tv_is_number(struct clime_tv v, double *f); /* bool, int, bigint or float, and its value */

struct clime_tlist *clime_tlist_new(struct clime_tr *tr, size_t size);
void clime_tlist_push(struct clime_tr *tr, struct clime_tlist *l, struct clime_tv v);

struct clime_tdict *clime_tdict_new(struct clime_tr *tr);
void clime_tdict_set(struct clime_tr *tr, struct clime_tdict *d, struct clime_tv key, struct clime_tv value);
struct clime_tv *clime_tdict_get(struct clime_tr *tr, const struct clime_tdict *d, struct clime_tv key); /* or NULL */
struct clime_tv *clime_tdict_getz(struct clime_tr *tr, const struct clime_tdict *d, struct clime_str key);

int64_t clime_trange_length(const struct clime_trange *r);

/* ---- asking ---- */

const char *clime_tv_type(struct clime_tv v); /* Python's type name: "str", "list", "Undefined", ... */
bool clime_tv_equal(struct clime_tr *tr, struct clime_tv a, struct clime_tv b);
bool clime_tv_same(struct clime_tv a, struct clime_tv b);                      /* `is` */
int clime_tv_order(struct clime_tr *tr, struct clime_tv a, struct clime_tv b); /* <0, 0, >0; fails where Python does */
bool clime_tv_unordered(struct clime_tv a, struct clime_tv b);                 /* a comparison with NaN */
uint64_t clime_tv_hash(struct clime_tr *tr, struct clime_tv v);                /* fails for unhashable values */
bool clime_tv_hashable(struct clime_tv v);
void clime_tv_fail_undefined(struct clime_tr *tr, struct clime_tv v) __attribute__((noreturn));

/* ---- sorting (sort.c) ---- */

/* l's items by their keys, stable in both directions as Python's sorted(). */
struct clime_tlist *clime_tlist_sorted(struct clime_tr *tr, const struct clime_tlist *l, const struct clime_tlist *keys,
                                       bool reverse);
/* A copy in which every dictionary, in others and in lists too, has its entries in the order of their keys. */
struct clime_tv clime_tv_sort_keys(struct clime_tr *tr, struct clime_tv v);

/* ---- text (text.c) ---- */

/* str(v); the string itself when it is one. */
struct clime_str clime_tv_to_str(struct clime_tr *tr, struct clime_tv v);
void clime_tv_print(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v); /* appends str(v) */
void clime_tv_repr(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v);
void clime_tv_print_float(struct clime_tr *tr, struct clime_tout *o, double f); /* as repr(float) */
struct clime_str clime_tv_escape(struct clime_tr *tr, struct clime_tv v);       /* HTML-escaped unless Markup */

/* ---- JSON (json.c) ---- */

/* The value of a JSON text; strings are slices of it. CLIME_ERR_INPUT names what and the byte. */
struct clime_tv clime_tv_from_json(struct clime_tr *tr, struct clime_str text, const char *what);

struct clime_tjson {
    bool ascii, sort_keys;
    bool indented;
    struct clime_str indent; /* of one level */
    struct clime_str item_sep, key_sep;
};
void clime_tv_to_json(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, const struct clime_tjson *how);

#endif
