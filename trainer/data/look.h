/* Survey of a data file's rows: their members, kinds of values, an example. For clime-train data. */
#ifndef CLIME_TRAINER_DATA_LOOK_H
#define CLIME_TRAINER_DATA_LOOK_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

#define CLIME_LOOK_FIELDS 64 /* maximum; further fields are ignored */

struct clime_look_field {
    char *name, *example; /* from the first row that has it; owned */
    int64_t n;            /* rows that have it */
    unsigned kinds;       /* bit 1 << enum clime_json_kind for each kind seen */
};

struct clime_look {
    int64_t n; /* rows */
    int n_fields;
    struct clime_look_field fields[CLIME_LOOK_FIELDS];
};

/* Adds the rows of a source (trainer/data/source.h). Errors: the source's, or a row that is not an object. */
enum clime_err clime_look_add(struct clime_look *l, const char *source, struct clime_error *e);
const struct clime_look_field *clime_look_find(const struct clime_look *l, const char *name); /* NULL: no row has it */
void clime_look_print(const struct clime_look *l, struct clime_buf *out);                     /* one line per field */
void clime_look_free(struct clime_look *l);

#endif
