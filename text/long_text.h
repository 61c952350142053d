/* Splits long texts as Moonshot's TikTokenTokenizer class does before tiktoken: a part has at most 400,000 characters,
 * and at most 25,000 consecutive ones that are all white space or all not. Nothing merges across a split: each part is
 * encoded by itself. Pure; the caller owns the state.
 */
#ifndef CLIME_TEXT_LONG_TEXT_H
#define CLIME_TEXT_LONG_TEXT_H

#include <stdbool.h>

#include "common/str.h"

struct clime_long_text {
    struct clime_str rest; /* valid UTF-8 */
    size_t n_chars;        /* characters since the last split by count; 0 at the start */
};

/* Takes the next part from the front of rest; false when nothing is left. */
bool clime_long_text_next(struct clime_long_text *l, struct clime_str *part);

#endif
