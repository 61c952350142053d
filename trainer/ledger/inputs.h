/* Ledger: what a run was given besides its options: prompts, tokenizer, models, by checksum or as text. */
#ifndef CLIME_TRAINER_LEDGER_INPUTS_H
#define CLIME_TRAINER_LEDGER_INPUTS_H

#include "trainer/ledger/ledger.h"

/* Records that the input `name` has this checksum (hex) or text. When it was recorded before with another one, the same
 * command would not continue the run: CLIME_ERR_INPUT, with `what` it is in the user's words. As long as no weights are
 * recorded it may still change. */
enum clime_err clime_input_put(struct clime_ledger *l, const char *name, const char *checksum, const char *what,
                               struct clime_error *e);

/* What is recorded of it; *out: NULL where nothing is. The caller frees it. */
enum clime_err clime_input_get(struct clime_db *db, const char *name, char **out, struct clime_error *e);

#endif
