/* Overlap check: which prompts occur in a held-out evaluation set.
 *
 * Texts are compared as words: lower case, split at everything except letters and digits. A prompt matches when a text
 * of the set has the same words, or shares n words in a row (n = 13: Brown et al. 2020, "Language models are few-shot
 * learners", appendix C). Non-ASCII letters are compared unchanged. Words are compared by 64-bit hashes. */
#ifndef CLIME_TRAINER_DATA_OVERLAP_H
#define CLIME_TRAINER_DATA_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/str.h"

struct clime_overlap;

/* n_gram: shared words in a row that make a match; 0 = only whole texts are compared. */
struct clime_overlap *clime_overlap_new(int n_gram);
void clime_overlap_free(struct clime_overlap *o); /* NULL is fine */
void clime_overlap_add(struct clime_overlap *o, struct clime_str text);
bool clime_overlap_has(const struct clime_overlap *o, struct clime_str text);

#endif
