/* In which order prompts come: one epoch over one source, or over several with weights.
 *
 * An epoch has as many places as all sources have items. Without weights every item comes once. With weights a source
 * gets its share of the places, rounded, at least one; it goes around its own items, each time in another order, and
 * goes on in the next epoch where it stopped. The order is a function of (parts, seed, epoch) alone, so nothing but the
 * number of a place is needed to find it again. Pure.
 */
#ifndef CLIME_TRAINER_DATA_MIX_H
#define CLIME_TRAINER_DATA_MIX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/hash.h"

struct clime_mix_part {
    int first, n;  /* items of the source, one at least: first <= i < first + n */
    double weight; /* > 0; 0 = none, for all parts alike */
};

/* CLIME_ERR_INPUT when some have a weight and others none. */
enum clime_err clime_mix_check(const struct clime_mix_part *parts, int n_parts, struct clime_error *e);

/* Items of an epoch into order[n], n being the sum of the parts'. Without shuffle the items of a source come in its
 * own order, sources with weights evenly between each other. */
void clime_mix_order(const struct clime_mix_part *parts, int n_parts, uint64_t seed, int64_t epoch, bool shuffle,
                     int32_t *order);

/* Adds the weights to a checksum of the data: they decide what is trained. Nothing where there are none. */
void clime_mix_checksum(const struct clime_mix_part *parts, int n_parts, struct clime_checksum *c);

#endif
