/* Version labels of weights, "VERSION@RUN.TOKEN": the step, the run, and the start of its trainer. A trainer thus never
 * accepts samples of another's weights, even those of a copy of the run folder. "run" here is "RUN.TOKEN" (struct
 * clime_run.start). Pure; any thread. */
#ifndef CLIME_TRAINER_SAMPLE_LABEL_H
#define CLIME_TRAINER_SAMPLE_LABEL_H

#include <stdint.h>

#include "common/str.h"

#define CLIME_VERSION_LABEL 64 /* label and NUL */

void clime_label_write(char out[CLIME_VERSION_LABEL], int64_t version, const char *run);

/* The version if the label belongs to the run; else -1. */
int64_t clime_label_version(struct clime_str label, struct clime_str run);

/* The run in a label, and the run without its token; empty if the label has none. */
struct clime_str clime_label_run(struct clime_str label);
struct clime_str clime_label_name(struct clime_str run);

/* Copies any label; one longer than a run's is cut and ends in dots. */
void clime_label_copy(char out[CLIME_VERSION_LABEL], struct clime_str label);

#endif
