/* Pickle reader (see pickle.h): a stack machine with a memo, as the format defines (Python's pickletools documents all
 * instructions). Implements those written by ForkingPickler and the C pickler.
 *
 * Invariant: every length, memo index and depth is bounds-checked before use.
 */
#include "server/update/pickle.h"

#include <stdlib.h>
#include <string.h>

typedef struct clime_pickle_value value;

struct machine {
    const uint8_t *at, *end;
    struct clime_arena *arena;
    struct clime_error *e;
    value **stack, **memo; /* own memory */
    size_t n, stack_room, n_memo, memo_room;
};

static bool bad(struct machine *m, const char *what) {
    if (!m->e->code) clime_fail(m->e, CLIME_ERR_INPUT, "the pickle is broken: %s", what);
    return false;
}

static value *make(struct machine *m, enum clime_pickle_kind kind) {
    value *v = clime_arena_zalloc(m->arena, sizeof *v);
    if (v)
        v->kind = kind;
    else if (!m->e->code)
        clime_fail(m->e, CLIME_ERR_LIMIT, "the pickle is too large");
    return v;
}

static bool push(struct machine *m, value *v) {
    if (!v) return false;
    if (m->n == m->stack_room) {
        m->stack_room = m->stack_room ? 2 * m->stack_room : 256;
        m->stack = xrealloc(m->stack, m->stack_room * sizeof *m->stack);
    }
    m->stack[m->n++] = v;
    return true;
}

static value *pop(struct machine *m) { /* NULL on an empty stack or a mark */
    if (m->n == 0 || m->stack[m->n - 1]->kind == CLIME_PICKLE_MARK) return bad(m, "the stack is empty"), NULL;
    return m->stack[--m->n];
}

static value *top(struct machine *m) {
    if (m->n == 0) return bad(m, "the stack is empty"), NULL;
    return m->stack[m->n - 1];
}

static bool add(struct machine *m, value *to, value *v) {
    if (to->n == to->room) {
        int room = to->room ? 2 * to->room : 4;
        value **items = clime_arena_alloc(m->arena, (size_t)room * sizeof *items);
        if (!items) return make(m, CLIME_PICKLE_NONE), false; /* sets the error */
        if (to->n) memcpy(items, to->items, (size_t)to->n * sizeof *items);
        to->items = items;
        to->room = room;
    }
    to->items[to->n++] = v;
    return true;
}

/* ---- arguments --------------------------------------------------------------------------------------------- */

static bool number(struct machine *m, int n_bytes, uint64_t *out) {
    *out = 0;
    if (m->end - m->at < n_bytes) return bad(m, "it ends early");
    for (int i = 0; i < n_bytes; i++) *out |= (uint64_t)m->at[i] << 8 * i;
    m->at += n_bytes;
    return true;
}

static bool push_text(struct machine *m, enum clime_pickle_kind kind, int length_bytes) {
    uint64_t n;
    if (!number(m, length_bytes, &n)) return false;
    if (n > (uint64_t)(m->end - m->at)) return bad(m, "a length is more than there is");
    value *v = make(m, kind);
    if (v) v->text = (struct clime_str){(const char *)m->at, (size_t)n};
    m->at += n;
    return push(m, v);
}

static bool line(struct machine *m, struct clime_str *out) {
    const uint8_t *nl = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (!nl) return bad(m, "it ends early");
    *out = (struct clime_str){(const char *)m->at, (size_t)(nl - m->at)};
    m->at = nl + 1;
    return true;
}

static bool push_number(struct machine *m, enum clime_pickle_kind kind, int64_t x) {
    value *v = make(m, kind);
    if (v) v->number = x;
    return push(m, v);
}

static bool push_unsigned(struct machine *m, int n_bytes) {
    uint64_t x;
    return number(m, n_bytes, &x) && push_number(m, CLIME_PICKLE_INT, (int64_t)x);
}

static bool push_int32(struct machine *m) {
    uint64_t x;
    return number(m, 4, &x) && push_number(m, CLIME_PICKLE_INT, (int32_t)(uint32_t)x);
}

static bool push_long(struct machine *m) { /* two's complement, variable length */
    uint64_t n, x;
    if (!number(m, 1, &n)) return false;
    if (n > 8) return bad(m, "a number of more than 64 bits");
    if (!number(m, (int)n, &x)) return false;
    if (n > 0 && n < 8 && x >> (8 * n - 1)) x |= ~(uint64_t)0 << 8 * n;
    return push_number(m, CLIME_PICKLE_INT, (int64_t)x);
}

/* ---- composite values ------------------------------------------------------------------------------------ */

static bool tuple_of(struct machine *m, size_t n) {
    value *t = make(m, CLIME_PICKLE_TUPLE);
    if (m->n < n) return bad(m, "the stack is empty");
    for (size_t i = 0; t && i < n; i++)
        if (m->stack[m->n - n + i]->kind == CLIME_PICKLE_MARK || !add(m, t, m->stack[m->n - n + i]))
            return bad(m, "a tuple over a mark");
    m->n -= n;
    return push(m, t);
}

/* Index of the first item after the topmost mark; 0 = no mark. */
static size_t after_mark(struct machine *m) {
    size_t i = m->n;
    while (i > 0 && m->stack[i - 1]->kind != CLIME_PICKLE_MARK) i--;
    if (i == 0) bad(m, "there is no mark");
    return i;
}

static bool tuple_from_mark(struct machine *m) {
    size_t from = after_mark(m);
    if (!from || !tuple_of(m, m->n - from)) return false;
    m->stack[m->n - 2] = m->stack[m->n - 1]; /* overwrites the mark */
    m->n--;
    return true;
}

/* Moves the items from `from` on into the list or dict below, and drops the mark if there is one. */
static bool put_all(struct machine *m, size_t from, bool mark, enum clime_pickle_kind kind) {
    size_t below = from - (mark ? 1 : 0);
    if (!from || below == 0 || m->stack[below - 1]->kind != kind) return bad(m, "items of nothing");
    if (kind == CLIME_PICKLE_DICT && (m->n - from) % 2) return bad(m, "a key without a value");
    for (size_t i = from; i < m->n; i++)
        if (m->stack[i]->kind == CLIME_PICKLE_MARK || !add(m, m->stack[below - 1], m->stack[i]))
            return bad(m, "items over a mark");
    m->n = below;
    return true;
}

static bool put_last(struct machine *m, size_t n, enum clime_pickle_kind kind) {
    return m->n > n ? put_all(m, m->n - n, false, kind) : bad(m, "the stack is empty");
}

static bool global(struct machine *m, struct clime_str module, struct clime_str name) {
    value *v = make(m, CLIME_PICKLE_GLOBAL);
    if (v) {
        v->text = module;
        v->name = name;
    }
    return push(m, v);
}

static bool stack_global(struct machine *m) {
    value *name = pop(m), *module = name ? pop(m) : NULL;
    if (!module) return false;
    if (name->kind != CLIME_PICKLE_TEXT || module->kind != CLIME_PICKLE_TEXT) return bad(m, "a name that is no text");
    return global(m, module->text, name->text);
}

static bool call(struct machine *m) {
    value *args = pop(m), *what = args ? pop(m) : NULL, *v = make(m, CLIME_PICKLE_CALL);
    if (!what || !v) return false;
    if (args->kind != CLIME_PICKLE_TUPLE) return bad(m, "a call without arguments");
    return add(m, v, what) && add(m, v, args) && add(m, v, NULL) && push(m, v);
}

static bool build(struct machine *m) {
    value *state = pop(m), *v = state ? top(m) : NULL;
    if (!v) return false;
    if (v->kind != CLIME_PICKLE_CALL) return bad(m, "a state of nothing");
    v->items[2] = state;
    return true;
}

/* ---- the memo ---------------------------------------------------------------------------------------------- */

static bool remember(struct machine *m, uint64_t i) {
    value *v = top(m);
    if (!v) return false;
    if (i > m->n_memo) return bad(m, "the memo has holes");
    if (i == m->n_memo) {
        if (m->n_memo == m->memo_room) {
            m->memo_room = m->memo_room ? 2 * m->memo_room : 256;
            m->memo = xrealloc(m->memo, m->memo_room * sizeof *m->memo);
        }
        m->n_memo++;
    }
    m->memo[i] = v;
    return true;
}

static bool remember_at(struct machine *m, int n_bytes) {
    uint64_t i;
    return number(m, n_bytes, &i) && remember(m, i);
}

static bool recall(struct machine *m, int n_bytes) {
    uint64_t i;
    if (!number(m, n_bytes, &i)) return false;
    return i < m->n_memo ? push(m, m->memo[i]) : bad(m, "the memo has no such value");
}

/* ---- instructions ------------------------------------------------------------------------------------------ */

static bool skip(struct machine *m, int n_bytes) {
    uint64_t ignored;
    return number(m, n_bytes, &ignored);
}

static bool step(struct machine *m, uint8_t op) {
    struct clime_str module, name;
    switch (op) {
    case 0x80: /* PROTO */
        return skip(m, 1);
    case 0x95: /* FRAME */
        return skip(m, 8);
    case '(': /* MARK */
        return push(m, make(m, CLIME_PICKLE_MARK));
    case 'N': /* NONE */
        return push(m, make(m, CLIME_PICKLE_NONE));
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return push_number(m, CLIME_PICKLE_BOOL, op == 0x88);
    case 'J': /* BININT */
        return push_int32(m);
    case 'K': /* BININT1, BININT2 */
        return push_unsigned(m, 1);
    case 'M':
        return push_unsigned(m, 2);
    case 0x8a: /* LONG1 */
        return push_long(m);
    case 'G': /* BINFLOAT */
        return skip(m, 8) && push(m, make(m, CLIME_PICKLE_FLOAT));
    case 0x8c: /* SHORT_BINUNICODE, BINUNICODE, BINUNICODE8 */
        return push_text(m, CLIME_PICKLE_TEXT, 1);
    case 'X':
        return push_text(m, CLIME_PICKLE_TEXT, 4);
    case 0x8d:
        return push_text(m, CLIME_PICKLE_TEXT, 8);
    case 'C': /* SHORT_BINBYTES, BINBYTES, BINBYTES8 */
        return push_text(m, CLIME_PICKLE_BYTES, 1);
    case 'B':
        return push_text(m, CLIME_PICKLE_BYTES, 4);
    case 0x8e:
        return push_text(m, CLIME_PICKLE_BYTES, 8);
    case ')': /* EMPTY_TUPLE, TUPLE1 to TUPLE3, TUPLE */
        return tuple_of(m, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return tuple_of(m, (size_t)op - 0x84);
    case 't':
        return tuple_from_mark(m);
    case ']': /* EMPTY_LIST, APPEND, APPENDS */
        return push(m, make(m, CLIME_PICKLE_LIST));
    case 'a':
        return put_last(m, 1, CLIME_PICKLE_LIST);
    case 'e':
        return put_all(m, after_mark(m), true, CLIME_PICKLE_LIST);
    case '}': /* EMPTY_DICT, SETITEM, SETITEMS */
        return push(m, make(m, CLIME_PICKLE_DICT));
    case 's':
        return put_last(m, 2, CLIME_PICKLE_DICT);
    case 'u':
        return put_all(m, after_mark(m), true, CLIME_PICKLE_DICT);
    case 'c': /* GLOBAL, STACK_GLOBAL */
        return line(m, &module) && line(m, &name) && global(m, module, name);
    case 0x93:
        return stack_global(m);
    case 'R': /* REDUCE, NEWOBJ, BUILD */
    case 0x81:
        return call(m);
    case 'b':
        return build(m);
    case 0x94: /* MEMOIZE, BINPUT, LONG_BINPUT, BINGET, LONG_BINGET */
        return remember(m, m->n_memo);
    case 'q':
        return remember_at(m, 1);
    case 'r':
        return remember_at(m, 4);
    case 'h':
        return recall(m, 1);
    case 'j':
        return recall(m, 4);
    default:
        if (!m->e->code)
            clime_fail(m->e, CLIME_ERR_INPUT, "the pickle has an instruction 0x%02x, which is not read", op);
        return false;
    }
}

enum clime_err clime_pickle_read(struct clime_str bytes, struct clime_arena *a, const struct clime_pickle_value **out,
                                 struct clime_error *e) {
    struct machine m = {
        .at = (const uint8_t *)bytes.ptr, .end = (const uint8_t *)bytes.ptr + bytes.len, .arena = a, .e = e};
    bool going = true, stopped = false;
    *out = NULL;
    e->code = CLIME_OK;
    while (going && !stopped) {
        if (m.at == m.end) {
            going = bad(&m, "it ends early");
        } else if (*m.at == '.') {
            *out = pop(&m);
            stopped = true;
        } else {
            uint8_t op = *m.at++;
            going = step(&m, op);
        }
    }
    free(m.stack);
    free(m.memo);
    if (e->code) *out = NULL;
    return e->code;
}

const struct clime_pickle_value *clime_pickle_at(const struct clime_pickle_value *v, const char *key) {
    for (int i = 0; v && v->kind == CLIME_PICKLE_DICT && i + 1 < v->n; i += 2)
        if (v->items[i]->kind == CLIME_PICKLE_TEXT && clime_str_is(v->items[i]->text, key)) return v->items[i + 1];
    return NULL;
}

bool clime_pickle_is(const struct clime_pickle_value *v, const char *module, const char *name) {
    return v && v->kind == CLIME_PICKLE_GLOBAL && clime_str_is(v->text, module) && clime_str_is(v->name, name);
}
