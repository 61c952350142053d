/* Ledger: streams of samples, the arrays that grow with their tokens, by name: ids, logp, mask, ... Each is a row of
 * (sample, name, type, data) in sample_streams, so a new kind of stream is a row of the table in streams.c.
 *
 * All inside a transaction of the caller, or on a reading connection. */
#ifndef CLIME_TRAINER_LEDGER_STREAMS_H
#define CLIME_TRAINER_LEDGER_STREAMS_H

#include "trainer/ledger/db.h"
#include "trainer/sample/sample.h"

/* Names of those that belong to the sample's step, as a list of SQL strings. */
#define CLIME_STEP_STREAMS "'advantages', 'old_logp', 'old_values', 'returns', 'entropy'"

/* Writes what s has, in place of what is stored for it: ids, log-probabilities, mask, text. first: nothing but its
 * prompt's ids can be stored yet. */
enum clime_err clime_streams_put(struct clime_db *db, const struct clime_sample *s, bool first, struct clime_error *e);
/* Adds what its step's estimate has. */
enum clime_err clime_streams_put_estimate(struct clime_db *db, const struct clime_sample *s,
                                          const struct clime_estimate *estimate, struct clime_error *e);

/* Adds what the step found when it ran: [n_response], NaN where a token was not trained on. For those who look; nothing
 * reads it back. */
enum clime_err clime_streams_put_entropy(struct clime_db *db, const struct clime_sample *s, const float *entropy,
                                         struct clime_error *e);

/* Reads the streams of s, whose n_prompt and n_response are filled, and with estimate not NULL its step's too. Lengths
 * that do not fit, or no ids at all (CLIME_ERR_INPUT): the ledger is damaged, or keeps them no longer. */
enum clime_err clime_streams_get(struct clime_db *db, struct clime_sample *s, struct clime_estimate *estimate,
                                 struct clime_error *e);

/* Takes the streams of all samples whose group was used or dropped by a rollout before `rollout`. */
enum clime_err clime_streams_drop_before(struct clime_db *db, int64_t rollout, int64_t *n, struct clime_error *e);

#endif
