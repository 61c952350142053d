/* Ledger: streams of samples, the per-token arrays, by name: ids, logp, mask, ... Each is a row (sample, name, type,
 * data) of sample_streams; a new kind of stream is a row of the table in streams.c.
 *
 * All run inside the caller's transaction or on a reading connection. */
#ifndef CLIME_TRAINER_LEDGER_STREAMS_H
#define CLIME_TRAINER_LEDGER_STREAMS_H

#include "trainer/ledger/db.h"
#include "trainer/sample/sample.h"

/* SQL list of the streams that belong to the sample's step. */
#define CLIME_STEP_STREAMS "'advantages', 'old_logp', 'old_values', 'returns', 'entropy'"

/* Replaces the stored streams of s: ids, log-probabilities, mask, text. first: only prompt ids may be stored yet. */
enum clime_err clime_streams_put(struct clime_db *db, const struct clime_sample *s, bool first, struct clime_error *e);
/* Adds the streams of its step's estimate. */
enum clime_err clime_streams_put_estimate(struct clime_db *db, const struct clime_sample *s,
                                          const struct clime_estimate *estimate, struct clime_error *e);

/* Adds the entropy measured by the step: [n_response], NaN for tokens not trained on. For display only. */
enum clime_err clime_streams_put_entropy(struct clime_db *db, const struct clime_sample *s, const float *entropy,
                                         struct clime_error *e);

/* Reads the streams of s (n_prompt and n_response are set), and its step's unless estimate is NULL. CLIME_ERR_INPUT:
 * wrong lengths or no ids; the ledger is damaged or has dropped them. */
enum clime_err clime_streams_get(struct clime_db *db, struct clime_sample *s, struct clime_estimate *estimate,
                                 struct clime_error *e);

/* Deletes the streams of all samples whose group was used or dropped by a rollout before `rollout`; *n counts them. */
enum clime_err clime_streams_drop_before(struct clime_db *db, int64_t rollout, int64_t *n, struct clime_error *e);

#endif
