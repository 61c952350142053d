/* Reading what Python's pickle has written, as a tree of values. Nothing is executed and nothing is imported: a call of
 * something is a value that names it, and whoever reads the tree decides what it knows.
 *
 * Protocols 3 to 5 (2 has no bytes). The tree and its text lie in the arena and in the bytes, which must outlive it; it
 * may share branches, and a hostile one may have circles, so readers go no deeper than what they look for. Any thread.
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
    CLIME_PICKLE_FLOAT, /* its number is not read */
    CLIME_PICKLE_BYTES,
    CLIME_PICKLE_TEXT,
    CLIME_PICKLE_TUPLE,
    CLIME_PICKLE_LIST,
    CLIME_PICKLE_DICT,   /* items: key, value, key, value, ... */
    CLIME_PICKLE_GLOBAL, /* text: the module; name */
    CLIME_PICKLE_CALL,   /* items: what is called, its arguments (a tuple), the state that it is given or NULL */
    CLIME_PICKLE_MARK    /* of the reader's own stack */
};

struct clime_pickle_value {
    enum clime_pickle_kind kind;
    int64_t number;
    struct clime_str text, name;
    struct clime_pickle_value **items; /* [n] */
    int n, room;
};

/* CLIME_ERR_INPUT for what no pickle is or an instruction that is not known, CLIME_ERR_LIMIT past the arena. */
enum clime_err clime_pickle_read(struct clime_str bytes, struct clime_arena *a, const struct clime_pickle_value **out,
                                 struct clime_error *e);

/* The dict's value of that key; NULL when v is no dict, or has none. */
const struct clime_pickle_value *clime_pickle_at(const struct clime_pickle_value *v, const char *key);
bool clime_pickle_is(const struct clime_pickle_value *v, const char *module, const char *name); /* that global? */

#endif
