/* A row of a data file as a JSON object, whatever the file's format. */
#ifndef CLIME_TRAINER_DATA_ROW_H
#define CLIME_TRAINER_DATA_ROW_H

#include <stdint.h>

#include "common/err.h"
#include "common/json/scan.h"
#include "common/str.h"

#define CLIME_ROW_MAX ((size_t)64 << 20) /* bytes */

/* Receives one row; number: its first line, from 1, or its index in an array. An error stops the reading. */
typedef enum clime_err clime_row_fn(void *arg, int64_t number, struct clime_str json, struct clime_error *e);

/* Sets *member to raw, the value of the member `name`; j fails on a duplicate, whose meaning is ambiguous. */
void clime_row_take(struct clime_json *j, const char *name, struct clime_str raw, struct clime_str *member);

/* Consumes a value; j fails if an object in it has a duplicate member: readers would differ in which they take. */
void clime_row_skip_once(struct clime_json *j);

/* The text of a JSON string; false for other values. */
bool clime_row_text(struct clime_str raw, struct clime_arena *a, struct clime_str *out);

/* Converts the tools under key to the list for the chat template: some files store it as a string. No tools: ptr NULL.
 * CLIME_ERR_INPUT: a string with other content, or not a list. */
enum clime_err clime_row_tools(struct clime_str *tools, const char *key, struct clime_arena *a, struct clime_error *e);

/* Reports that the row lacks the member that an option names, and lists its members. Returns CLIME_ERR_INPUT. */
enum clime_err clime_row_lacks(struct clime_str row, const char *member, const char *option, struct clime_error *e);

#endif
