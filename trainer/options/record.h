/* Options as a run's record has them. Pure. */
#ifndef CLIME_TRAINER_OPTIONS_RECORD_H
#define CLIME_TRAINER_OPTIONS_RECORD_H

#include "common/options/options.h"

/* Those of the n rows that decide the weights (`decides` says so of their names; NULL: all do), with their values, as a
 * JSON object for free. */
char *clime_options_record(const struct clime_opt *t, int n, bool (*decides)(const void *arg, const char *name),
                           const void *arg);

#endif
