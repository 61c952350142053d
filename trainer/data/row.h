/* A row of a data file, whatever form the file has: a JSON object. */
#ifndef CLIME_TRAINER_DATA_ROW_H
#define CLIME_TRAINER_DATA_ROW_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

#define CLIME_ROW_MAX ((size_t)64 << 20) /* bytes of a row */

/* Gets one row; number: of the line where it begins, from 1, or of the item. An error ends the reading. */
typedef enum clime_err clime_row_fn(void *arg, int64_t number, struct clime_str json, struct clime_error *e);

/* Fails: the row lacks the member that an option names, and has others. Returns CLIME_ERR_INPUT. */
enum clime_err clime_row_lacks(struct clime_str row, const char *member, const char *option, struct clime_error *e);

#endif
