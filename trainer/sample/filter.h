/* Dynamic sampling filters: which finished groups to train on (--dynamic-sampling-filter-path). Built-in filters are
 * pure functions; a path with a slash or the ending .so is a shared library (trainer/plugin/plugin.h).
 *
 * Names are slime's; of a dotted path the last part counts, so slime's recipes work:
 *   check_reward_nonzero_std                drops a group whose rewards are equal: it has no gradient
 *   check_reward_nonzero_std_with_fallback  the same, but uses it if dropping it would require more sampling */
#ifndef CLIME_TRAINER_SAMPLE_FILTER_H
#define CLIME_TRAINER_SAMPLE_FILTER_H

#include "common/err.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/sample.h"

/* members: [n] finished samples of one group, each with its reward. */
typedef void clime_filter_fn(struct clime_sample *const *members, int n, struct clime_verdict *out);

bool clime_filter_is_library(const char *path); /* NULL is not a library */

/* Finds a built-in filter; NULL and CLIME_ERR_INPUT, which lists the names. */
clime_filter_fn *clime_filter_find(const char *path, struct clime_error *e);

#endif
