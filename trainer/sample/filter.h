/* Filters: which finished groups are worth training on (--dynamic-sampling-filter-path). Built-in ones are pure
 * functions; a path with a slash or the ending .so is a shared library (trainer/plugin/plugin.h).
 *
 * A filter is named as in slime; of a dotted path the last part counts, so that slime's recipes name ours:
 *   check_reward_nonzero_std                a group whose rewards are all the same has no gradient: it is dropped
 *   check_reward_nonzero_std_with_fallback  the same, but it is used where dropping it would mean to sample more
 */
#ifndef CLIME_TRAINER_SAMPLE_FILTER_H
#define CLIME_TRAINER_SAMPLE_FILTER_H

#include "common/err.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/sample.h"

/* members: [n] finished samples of one group, each with its reward. */
typedef void clime_filter_fn(struct clime_sample *const *members, int n, struct clime_verdict *out);

bool clime_filter_is_library(const char *path); /* NULL is none */

/* NULL and CLIME_ERR_INPUT with the names there are. */
clime_filter_fn *clime_filter_find(const char *path, struct clime_error *e);

#endif
