/* Exports a run's answers by reward, as training data for another program. Any connection. */
#ifndef CLIME_TRAINER_LEDGER_BEST_H
#define CLIME_TRAINER_LEDGER_BEST_H

#include "trainer/ledger/db.h"
#include "trainer/sample/sample.h"

struct clime_best_sample {
    const char *prompt; /* after the chat template */
    const struct clime_sample *sample;
};
typedef enum clime_err clime_best_fn(void *arg, const struct clime_best_sample *s, struct clime_error *e);

/* Calls fn for each completed answer with reward >= min_reward whose tokens are still stored, in prompt order. best:
 * only the answer with the highest reward per prompt (source and line), the first among equals. */
enum clime_err clime_best_samples(struct clime_db *db, bool best, double min_reward, clime_best_fn *fn, void *arg,
                                  struct clime_error *e);

#endif
