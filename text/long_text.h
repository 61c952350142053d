/* Long texts, cut as Moonshot's TikTokenTokenizer class cuts them before tiktoken sees them: no part has more than
 * 400,000 characters, nor more than 25,000 in a row that are all white space or all none. Nothing merges across a cut,
 * so a text that has one gets the ids of its parts. Pure; the state is the caller's.
 */
#ifndef CLIME_TEXT_LONG_TEXT_H
#define CLIME_TEXT_LONG_TEXT_H

#include <stdbool.h>

#include "common/str.h"

struct clime_long_text {
    struct clime_str rest; /* valid UTF-8 */
    size_t n_chars;        /* taken since the last cut by number; 0 at the start */
};

/* Takes the next part from the front of rest; false when nothing is left. */
bool clime_long_text_next(struct clime_long_text *l, struct clime_str *part);

#endif
