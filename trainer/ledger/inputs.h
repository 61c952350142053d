/* Ledger: what a run was given besides its options, by checksum: prompts, tokenizer, models. */
#ifndef CLIME_TRAINER_LEDGER_INPUTS_H
#define CLIME_TRAINER_LEDGER_INPUTS_H

#include "trainer/ledger/ledger.h"

/* Records that the input `name` has this checksum (hex). When it was recorded before with another one, the same command
 * would not continue the run: CLIME_ERR_INPUT, with `what` it is in the user's words. As long as no weights are
 * recorded it may still change. */
enum clime_err clime_input_put(struct clime_ledger *l, const char *name, const char *checksum, const char *what,
                               struct clime_error *e);

#endif
