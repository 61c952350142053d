/* Splits long texts (see long_text.h). Called by text/tokenizer.c on text threads, for folders with tiktoken.model.
 *
 * Invariant: splits by count are counted from the start of the text, across the splits of long runs, as in the class.
 */
#include "text/long_text.h"

#include "text/unicode.h"

#define MAX_CHARS 400000
#define MAX_RUN 25000

bool clime_long_text_next(struct clime_long_text *l, struct clime_str *part) {
    const char *start = l->rest.ptr, *end = start + l->rest.len, *at = start, *next = start;
    size_t run = 0;
    bool space = false;
    for (; at < end; at = next) {
        bool is_space = clime_unicode_is_space(clime_unicode_next(&next, end));
        bool by_number = l->n_chars == MAX_CHARS;
        if (by_number) l->n_chars = 0;
        if (by_number || (run == MAX_RUN && is_space == space)) break;
        run = run && is_space == space ? run + 1 : 1;
        space = is_space;
        l->n_chars++;
    }
    *part = (struct clime_str){start, (size_t)(at - start)};
    l->rest = (struct clime_str){at, (size_t)(end - at)};
    return part->len > 0;
}
