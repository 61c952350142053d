/* Label check: grades each label as the response, in the forms that rewards ask for, to see if the reward accepts it.
 */
#ifndef CLIME_TRAINER_CMD_DATA_LABELS_H
#define CLIME_TRAINER_CMD_DATA_LABELS_H

#include "common/buf.h"
#include "trainer/data/data.h"
#include "trainer/reward/rewarder.h"

/* Grades the labels of at most `most` prompts, spread over the set, and writes for each form the mean reward and the
 * share of labels with the highest. *highest: over all forms and labels; <= 0: the labels do not fit. */
enum clime_err clime_data_labels(const struct clime_dataset *d, const struct clime_rewarder_options *o, int most,
                                 struct clime_buf *out, double *highest, struct clime_error *e);

#endif
