/* Which tensors a run trains: --only-train-params-name-list and --freeze-params-name-list. Main thread, at start. */
#ifndef CLIME_TRAINER_LEARN_FREEZE_H
#define CLIME_TRAINER_LEARN_FREEZE_H

#include "common/buf.h"
#include "common/options/options.h"
#include "model/weights/layout.h"

/* Freezes the tensors in whose Hugging Face name no pattern of `only` is found, or one of `freeze` is; one list at most
 * is given. CLIME_ERR_INPUT for a pattern that no name holds, so that a misspelt one never trains everything, and when
 * nothing is left to train. */
enum clime_err clime_freeze(struct clime_layout *l, const struct clime_opt_list *only,
                            const struct clime_opt_list *freeze, struct clime_error *e);

/* "trained: 12 of 30 tensors, 1.2 of 5.0 M parameters"; nothing when all are. */
void clime_freeze_describe(const struct clime_layout *l, struct clime_buf *out);

#endif
