/* Which prompts are in a set that is kept for evaluation.
 *
 * Texts are compared by their words: lower case, everything but letters and digits between them. A prompt is in the set
 * when one of the set has the same words, or the same n words in a row somewhere (n = 13: Brown et al. 2020, "Language
 * models are few-shot learners", appendix C). Letters beyond ASCII are taken as they are. Words are compared by 64-bit
 * hashes.
 */
#ifndef CLIME_TRAINER_DATA_OVERLAP_H
#define CLIME_TRAINER_DATA_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/str.h"

struct clime_overlap;

/* n_gram: words in a row that are too many; 0 = only whole texts are compared. */
struct clime_overlap *clime_overlap_new(int n_gram);
void clime_overlap_free(struct clime_overlap *o); /* NULL is fine */
void clime_overlap_add(struct clime_overlap *o, struct clime_str text);
bool clime_overlap_has(const struct clime_overlap *o, struct clime_str text);

#endif
