/* Whether labels are what a reward compares with: each label given as the response, in the forms that rewards ask for.
 */
#ifndef CLIME_TRAINER_CMD_DATA_LABELS_H
#define CLIME_TRAINER_CMD_DATA_LABELS_H

#include "common/buf.h"
#include "trainer/data/data.h"
#include "trainer/reward/rewarder.h"

/* Grades the labels of at most `most` prompts, spread over the set, and writes a line for each form: the mean reward
 * and the share that gets the highest. *highest: of all forms and labels; below or at 0 the labels do not fit. */
enum clime_err clime_data_labels(const struct clime_dataset *d, const struct clime_rewarder_options *o, int most,
                                 struct clime_buf *out, double *highest, struct clime_error *e);

#endif
