/* Options in a run's record. Pure. */
#ifndef CLIME_TRAINER_OPTIONS_RECORD_H
#define CLIME_TRAINER_OPTIONS_RECORD_H

#include "common/options/options.h"

/* The rows among n that affect the weights (`decides` by name; NULL: all), with their values, as a JSON object that the
 * caller frees. */
char *clime_options_record(const struct clime_opt *t, int n, bool (*decides)(const void *arg, const char *name),
                           const void *arg);

#endif
