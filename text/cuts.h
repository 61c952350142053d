/* Finds every split of a token into two other tokens.
 *
 * Takes the time to sort the tokens plus a few passes over each byte, also with many shared prefixes and suffixes. Pure
 * functions; any thread.
 */
#ifndef CLIME_TEXT_CUTS_H
#define CLIME_TEXT_CUTS_H

#include "text/vocab.h"

/* Called for each split, in order of the whole's id; false stops. */
typedef bool clime_cut_fn(void *arg, int32_t left, int32_t right, int32_t whole);

/* False when fn stopped it. No two ids may have the same string. */
bool clime_cuts_each(const struct clime_vocab *tokens, clime_cut_fn *fn, void *arg);

#endif
