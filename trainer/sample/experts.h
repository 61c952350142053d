/* The experts that a server's routers chose for a sample's rows (--use-rollout-routing-replay), as the sample and the
 * ledger keep them: of each position, of each layer that has experts, the k that were chosen, in ascending id. One byte
 * each or, of a model with more than 256 experts, two, the low one first. The last token has none: no row follows from
 * it that anything was drawn by.
 */
#ifndef CLIME_TRAINER_SAMPLE_EXPERTS_H
#define CLIME_TRAINER_SAMPLE_EXPERTS_H

#include "common/err.h"
#include "common/str.h"
#include "model/config/config.h"
#include "trainer/sample/sample.h"

int clime_experts_bytes(const struct clime_config *c); /* of a position */

/* What /generate says of n positions, base64 of int32 [n, layers, k]: to out[n, bytes]. CLIME_ERR_INPUT for another
 * length, and for what no router chooses: ids that are no expert's, twice the same, not in order. */
enum clime_err clime_experts_read(const struct clime_config *c, struct clime_str text, int n, uint8_t *out,
                                  struct clime_error *e);

/* Those of the sample: to given[L, T, k] from row `first` on, as a batch has them (struct clime_packed_batch). Its last
 * row, and all of a sample that has none, get -1. */
void clime_experts_give(const struct clime_config *c, const struct clime_sample *s, int T, int first, int16_t *given);

/* The sample has come to its end, or was given up: they are dropped where nothing will use them. That is all of them
 * unless it goes on later or has mixed KV; whatever has no mixed KV is computed as its servers did it. A sample that is
 * finished with mixed KV and has none FAILS. */
void clime_experts_settle(struct clime_sample *s);

#endif
