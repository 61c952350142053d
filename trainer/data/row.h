/* A row of a data file, whatever form the file has: a JSON object. */
#ifndef CLIME_TRAINER_DATA_ROW_H
#define CLIME_TRAINER_DATA_ROW_H

#include <stdint.h>

#include "common/err.h"
#include "common/json/scan.h"
#include "common/str.h"

#define CLIME_ROW_MAX ((size_t)64 << 20) /* bytes of a row */

/* Gets one row; number: of the line where it begins, from 1, or of the item. An error ends the reading. */
typedef enum clime_err clime_row_fn(void *arg, int64_t number, struct clime_str json, struct clime_error *e);

/* raw, the value of the member that is called name, becomes *member; j fails where that has one already: of two nobody
 * knows which is meant. */
void clime_row_take(struct clime_json *j, const char *name, struct clime_str raw, struct clime_str *member);

/* Consumes a value; j fails where an object in it has a member twice: of two, each reader would take another. */
void clime_row_skip_once(struct clime_json *j);

/* The text of a JSON string value; false when it is none. */
bool clime_row_text(struct clime_str raw, struct clime_arena *a, struct clime_str *out);

/* The tools under key as the list that a chat template gets: some files have it written as a string, and an empty one
 * (ptr NULL then) where there are none. CLIME_ERR_INPUT: a string of other text, a value that is no list. */
enum clime_err clime_row_tools(struct clime_str *tools, const char *key, struct clime_arena *a, struct clime_error *e);

/* Fails: the row lacks the member that an option names, and has others. Returns CLIME_ERR_INPUT. */
enum clime_err clime_row_lacks(struct clime_str row, const char *member, const char *option, struct clime_error *e);

#endif
