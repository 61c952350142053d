/* CSV reader (RFC 4180), one record at a time. The first record names the fields; all values are text. A quoted field
 * may contain separators, line ends and doubled quotes. */
#ifndef CLIME_TRAINER_DATA_CSV_H
#define CLIME_TRAINER_DATA_CSV_H

#include <stdio.h>

#include "trainer/data/row.h"

/* Calls fn with records first <= i < last after the header as JSON objects. f is positioned at the header; separator:
 * ',' or '\t'; path: for errors. */
enum clime_err clime_csv_rows(FILE *f, const char *path, char separator, int64_t first, int64_t last, clime_row_fn *fn,
                              void *arg, struct clime_error *e);

#endif
