/* Which tensors a run trains: --only-train-params-name-list and --freeze-params-name-list. Main thread, at start. */
#ifndef CLIME_TRAINER_LEARN_FREEZE_H
#define CLIME_TRAINER_LEARN_FREEZE_H

#include "common/buf.h"
#include "common/options/options.h"
#include "model/weights/layout.h"

/* Freezes the tensors whose Hugging Face name contains no pattern of `only`, or one of `freeze`; at most one list is
 * set. CLIME_ERR_INPUT if a pattern matches no name (a typo must not train everything) or nothing is left to train. */
enum clime_err clime_freeze(struct clime_layout *l, const struct clime_opt_list *only,
                            const struct clime_opt_list *freeze, struct clime_error *e);

/* "trained: 12 of 30 tensors, 1.2 of 5.0 M parameters"; empty if all are. */
void clime_freeze_describe(const struct clime_layout *l, struct clime_buf *out);

#endif
