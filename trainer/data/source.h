/* Data sources: rows of a data file of any format, as JSON objects.
 *
 * Nouns
 *   source   "path", "path@[a:b]" (Python's slice over the rows, negative numbers count from the end), "path@0.3" (its
 *            weight among several sources), or both: "path@[a:b]@0.3".
 *   row      a line of JSON lines; an item of a file that is one JSON array; a record of a file named .csv or .tsv,
 *            whose first record names the members, all of them text (trainer/data/csv.h).
 *
 * No state; any thread. */
#ifndef CLIME_TRAINER_DATA_SOURCE_H
#define CLIME_TRAINER_DATA_SOURCE_H

#include <stdint.h>

#include "trainer/data/row.h"

struct clime_source {
    char *path; /* owned */
    char slice[64];
    double weight; /* 0 = no weight */
};

/* CLIME_ERR_INPUT: a malformed slice or weight. */
enum clime_err clime_source_parse(const char *text, struct clime_source *out, struct clime_error *e);
void clime_source_free(struct clime_source *s);

/* CLIME_ERR_INPUT when a source's file is also the output of --OPTION, which would truncate it. */
enum clime_err clime_source_is_kept(const char *source, const char *option, const char *output, struct clime_error *e);

/* The slice over n rows: first <= i < last. */
enum clime_err clime_source_slice(const char *slice, int64_t n, int64_t *first, int64_t *last, struct clime_error *e);

/* Calls fn for each row of the source in order; stops at the first error, which fn returns. number: the row's first
 * line, from 1; in a JSON array, its index. Its own errors name file and line: CLIME_ERR_NOT_FOUND, CLIME_ERR_INPUT,
 * CLIME_ERR_LIMIT. */
enum clime_err clime_source_rows(const char *source, clime_row_fn *fn, void *arg, struct clime_error *e);

/* A source's short name: its file name without folders, extension, slice and weight. The caller frees it. */
char *clime_source_name(const char *source);

#endif
