/* Order of an epoch's items, over one source or several weighted ones.
 *
 * An epoch has as many places as all sources have items. Without weights every item appears once. With weights a source
 * gets its share of the places, rounded, at least one; it cycles through its items, each cycle in a new order, and
 * resumes in the next epoch where it stopped. The order is a function of (parts, seed, epoch) alone: the number of a
 * place is enough to find it again. Pure. */
#ifndef CLIME_TRAINER_DATA_MIX_H
#define CLIME_TRAINER_DATA_MIX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/hash.h"

struct clime_mix_part {
    int first, n;  /* items first <= i < first + n of the source; n >= 1 */
    double weight; /* > 0; 0 = none, then in all parts */
};

/* CLIME_ERR_INPUT when only some parts have a weight. */
enum clime_err clime_mix_check(const struct clime_mix_part *parts, int n_parts, struct clime_error *e);

/* Writes an epoch's items to order[n]; n = the sum of the parts'. Without shuffle each source keeps its order, and
 * weighted sources are evenly interleaved. */
void clime_mix_order(const struct clime_mix_part *parts, int n_parts, uint64_t seed, int64_t epoch, bool shuffle,
                     int32_t *order);

/* Adds the weights, if any, to a checksum of the data: they affect training. */
void clime_mix_checksum(const struct clime_mix_part *parts, int n_parts, struct clime_checksum *c);

#endif
