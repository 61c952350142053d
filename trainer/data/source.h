/* Rows of a data file, whatever form it has, as JSON objects.
 *
 * Nouns
 *   source   "path", "path@[a:b]" (Python's slice over the rows, negative numbers count from the end), "path@0.3" (its
 *            weight among several sources), or both: "path@[a:b]@0.3".
 *   row      a line of JSON lines; an item of a file that is one JSON array; a record of a file named .csv or .tsv,
 *            whose first record names the members, which are all text (trainer/data/csv.h).
 *
 * No state; any thread.
 */
#ifndef CLIME_TRAINER_DATA_SOURCE_H
#define CLIME_TRAINER_DATA_SOURCE_H

#include <stdint.h>

#include "trainer/data/row.h"

struct clime_source {
    char *path; /* owned */
    char slice[64];
    double weight; /* 0 = none was given */
};

/* CLIME_ERR_INPUT: a slice or weight that is none. */
enum clime_err clime_source_parse(const char *text, struct clime_source *out, struct clime_error *e);
void clime_source_free(struct clime_source *s);

/* CLIME_ERR_INPUT when a source's file is also what --OPTION output will be written to: it would be cut to nothing. */
enum clime_err clime_source_is_kept(const char *source, const char *option, const char *output, struct clime_error *e);

/* The slice over n rows: first <= i < last. */
enum clime_err clime_source_slice(const char *slice, int64_t n, int64_t *first, int64_t *last, struct clime_error *e);

/* Calls fn for each row of the source in order; stops at the first error, which fn returns. number: of the line where
 * the row begins, from 1; of a JSON array, of the item. Errors of its own name file and line: CLIME_ERR_NOT_FOUND,
 * CLIME_ERR_INPUT, CLIME_ERR_LIMIT. */
enum clime_err clime_source_rows(const char *source, clime_row_fn *fn, void *arg, struct clime_error *e);

/* A short name of a source: its file's, without folders, ending, slice and weight. The caller frees it. */
char *clime_source_name(const char *source);

#endif
