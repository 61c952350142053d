/* Labels of weights, "VERSION@RUN.TOKEN": which step's they are, of which run, and by which start of its trainer, so
 * that none takes what was sampled by another's weights for its own, were it that of a copy of the run folder. What is
 * "run" here is "RUN.TOKEN" (struct clime_run.start). Pure; any thread. */
#ifndef CLIME_TRAINER_SAMPLE_LABEL_H
#define CLIME_TRAINER_SAMPLE_LABEL_H

#include <stdint.h>

#include "common/str.h"

#define CLIME_VERSION_LABEL 64 /* one and its NUL */

void clime_label_write(char out[CLIME_VERSION_LABEL], int64_t version, const char *run);

/* The version, if the label is that run's; else -1. */
int64_t clime_label_version(struct clime_str label, struct clime_str run);

/* The run that a label names, and that without its token; empty where it is no run's. */
struct clime_str clime_label_run(struct clime_str label);
struct clime_str clime_label_name(struct clime_str run);

/* One that somebody may have given: of one longer than a run's can be the beginning, with dots that say so. */
void clime_label_copy(char out[CLIME_VERSION_LABEL], struct clime_str label);

#endif
