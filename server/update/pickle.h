/* Reads a Python pickle as a tree of values. Nothing is executed or imported: a call is a value that names the callee,
 * and the tree's reader decides which it accepts.
 *
 * Protocols 3 to 5 (2 has no bytes). The tree and its text point into the arena and the input bytes, which must outlive
 * it. It may share branches, and a hostile one may have cycles: readers must bound their depth. Any thread.
 */
#ifndef CLIME_SERVER_UPDATE_PICKLE_H
#define CLIME_SERVER_UPDATE_PICKLE_H

#include <stdint.h>

#include "common/arena.h"
#include "common/err.h"

enum clime_pickle_kind {
    CLIME_PICKLE_NONE,
    CLIME_PICKLE_BOOL,
    CLIME_PICKLE_INT,
    CLIME_PICKLE_FLOAT, /* value not read */
    CLIME_PICKLE_BYTES,
    CLIME_PICKLE_TEXT,
    CLIME_PICKLE_TUPLE,
    CLIME_PICKLE_LIST,
    CLIME_PICKLE_DICT,   /* items: key, value, key, value, ... */
    CLIME_PICKLE_GLOBAL, /* text: the module; name */
    CLIME_PICKLE_CALL,   /* items: callee, arguments (a tuple), state or NULL */
    CLIME_PICKLE_MARK    /* internal to the reader */
};

struct clime_pickle_value {
    enum clime_pickle_kind kind;
    int64_t number;
    struct clime_str text, name;
    struct clime_pickle_value **items; /* [n] */
    int n, room;
};

/* CLIME_ERR_INPUT for a malformed pickle or an unknown instruction, CLIME_ERR_LIMIT when the arena is full. */
enum clime_err clime_pickle_read(struct clime_str bytes, struct clime_arena *a, const struct clime_pickle_value **out,
                                 struct clime_error *e);

/* The dict's value for key; NULL when v is not a dict or lacks it. */
const struct clime_pickle_value *clime_pickle_at(const struct clime_pickle_value *v, const char *key);
bool clime_pickle_is(const struct clime_pickle_value *v, const char *module, const char *name); /* v is that global */

#endif
