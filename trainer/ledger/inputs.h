/* Ledger: a run's inputs besides its options (prompts, tokenizer, models), by checksum or as text. */
#ifndef CLIME_TRAINER_LEDGER_INPUTS_H
#define CLIME_TRAINER_LEDGER_INPUTS_H

#include "trainer/ledger/ledger.h"

/* Records the checksum (hex) or text of the input `name`. CLIME_ERR_INPUT if another one is recorded, since the command
 * would not continue the run; `what` names the input for the user. It may change until weights are recorded. */
enum clime_err clime_input_put(struct clime_ledger *l, const char *name, const char *checksum, const char *what,
                               struct clime_error *e);

/* The recorded value, or NULL. The caller frees it. */
enum clime_err clime_input_get(struct clime_db *db, const char *name, char **out, struct clime_error *e);

#endif
