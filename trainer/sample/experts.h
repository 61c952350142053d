/* Routed experts of a sample's rows (--use-rollout-routing-replay), as stored in the sample and the ledger: for each
 * position and MoE layer, the k experts that the server's router chose, in ascending id. One byte each, or two,
 * little-endian, for models with more than 256 experts. The last token has none: no token was sampled from its row. */
#ifndef CLIME_TRAINER_SAMPLE_EXPERTS_H
#define CLIME_TRAINER_SAMPLE_EXPERTS_H

#include "common/err.h"
#include "common/str.h"
#include "model/config/config.h"
#include "trainer/sample/sample.h"

int clime_experts_bytes(const struct clime_config *c); /* per position */

/* Decodes /generate's experts for n positions, base64 of int32 [n, layers, k], into out[n, bytes]. CLIME_ERR_INPUT: a
 * wrong length, or ids out of range, repeated or unsorted. */
enum clime_err clime_experts_read(const struct clime_config *c, struct clime_str text, int n, uint8_t *out,
                                  struct clime_error *e);

/* Writes the sample's experts to given[L, T, k] from row `first` on, in the batch's layout (struct clime_packed_batch).
 * Its last row, and every row of a sample without experts, get -1. */
void clime_experts_give(const struct clime_config *c, const struct clime_sample *s, int T, int first, int16_t *given);

/* Called when a sample ends or is abandoned: drops experts that nothing will use, which is all of them unless it will
 * be resumed or has mixed KV; samples without mixed KV are recomputed exactly as their servers did. A sample that
 * finished with mixed KV and lacks experts FAILS. */
void clime_experts_settle(struct clime_sample *s);

#endif
