/* Labels of weights, "VERSION@RUN": which step's they are and whose, so that no run takes what was sampled by another's
 * weights for its own. Pure; any thread. */
#ifndef CLIME_TRAINER_SAMPLE_LABEL_H
#define CLIME_TRAINER_SAMPLE_LABEL_H

#include <stdint.h>

#include "common/str.h"

#define CLIME_VERSION_LABEL 64 /* one and its NUL */

void clime_label_write(char out[CLIME_VERSION_LABEL], int64_t version, const char *run);

/* The version, if the label is that run's; else -1. */
int64_t clime_label_version(struct clime_str label, struct clime_str run);

/* The run that a label names; empty where it is no run's. */
struct clime_str clime_label_run(struct clime_str label);

#endif
