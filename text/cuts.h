/* Every way in which a token is two other tokens in a row.
 *
 * Time is that of sorting the tokens and of looking at each byte a few times, however they begin and end alike. Pure
 * functions; any thread.
 */
#ifndef CLIME_TEXT_CUTS_H
#define CLIME_TEXT_CUTS_H

#include "text/vocab.h"

/* What is called with each, in order of the whole's id; false ends it. */
typedef bool clime_cut_fn(void *arg, int32_t left, int32_t right, int32_t whole);

/* False when fn has ended it. No two of the ids spell the same. */
bool clime_cuts_each(const struct clime_vocab *tokens, clime_cut_fn *fn, void *arg);

#endif
