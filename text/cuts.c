/* Splits of tokens into two (see cuts.h). Called at load by text/bpe.c; frees what it allocates.
 *
 * A token's prefixes that are tokens form a chain from the longest down, and so do its suffixes, read backwards. The
 * two chains give its splits without reading its bytes. Hashing every prefix and suffix is quadratic in token length:
 * 20 s of CPU for a 63 MB file whose tokens share prefixes; this takes 2.
 */
#include "text/cuts.h"

#include <stdlib.h>

struct entry {
    uint64_t head; /* the first 8 bytes, which decide most comparisons */
    struct clime_str text;
    int32_t id;
};

static uint64_t head_of(struct clime_str text) {
    uint64_t head = 0;
    for (size_t i = 0; i < 8; i++) head = head << 8 | (i < text.len ? (uint8_t)text.ptr[i] : 0);
    return head;
}

static int by_text(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->head != y->head) return x->head < y->head ? -1 : 1;
    int order = memcmp(x->text.ptr, y->text.ptr, x->text.len < y->text.len ? x->text.len : y->text.len);
    return order ? order : (x->text.len > y->text.len) - (x->text.len < y->text.len);
}

static bool begins_with(struct clime_str text, struct clime_str with) {
    return with.len <= text.len && memcmp(text.ptr, with.ptr, with.len) == 0;
}

/* longest[id] = the longest other text that is a prefix of texts[id], -1 = none. In sorted order a text follows its
 * prefixes, so it is among the prefixes of the text before. */
static void find_beginnings(const struct clime_str *texts, int32_t n, int32_t *longest) {
    struct entry *v = xmalloc((size_t)n * sizeof *v);
    int32_t count = 0, last = -1;
    for (int32_t id = 0; id < n; id++)
        if (texts[id].len) v[count++] = (struct entry){head_of(texts[id]), texts[id], id};
    qsort(v, (size_t)count, sizeof *v, by_text);
    for (int32_t i = 0; i < count; i++) {
        while (last >= 0 && !begins_with(v[i].text, texts[last])) last = longest[last];
        longest[v[i].id] = last;
        last = v[i].id;
    }
    free(v);
}

static void reverse(struct clime_str *texts, int32_t n, char *to) {
    for (int32_t id = 0; id < n; id++) {
        for (size_t i = 0; i < texts[id].len; i++) to[i] = texts[id].ptr[texts[id].len - 1 - i];
        texts[id].ptr = to;
        to += texts[id].len;
    }
}

bool clime_cuts_each(const struct clime_vocab *tokens, clime_cut_fn *fn, void *arg) {
    int32_t n = tokens->n_ids;
    size_t bytes = 0, most = 0;
    struct clime_str *texts = xcalloc((size_t)n + 1, sizeof *texts);
    for (int32_t id = 0; id < n; id++) {
        texts[id] = clime_vocab_string(tokens, id);
        bytes += texts[id].len;
        if (texts[id].len > most) most = texts[id].len;
    }
    int32_t *begins = xmalloc(((size_t)n + 1) * sizeof *begins), *ends = xmalloc(((size_t)n + 1) * sizeof *ends);
    int32_t *left = xmalloc((most + 1) * sizeof *left); /* [length] the whole's prefix of that length, -1 = none */
    char *reversed = xmalloc(bytes + 1);
    bool on = true;
    find_beginnings(texts, n, begins);
    reverse(texts, n, reversed);
    find_beginnings(texts, n, ends);
    for (size_t i = 0; i <= most; i++) left[i] = -1;
    for (int32_t id = 0; id < n && on; id++) {
        if (!texts[id].len) continue;
        for (int32_t l = begins[id]; l >= 0; l = begins[l]) left[texts[l].len] = l;
        for (int32_t r = ends[id]; r >= 0 && on; r = ends[r]) {
            int32_t l = left[texts[id].len - texts[r].len];
            if (l >= 0) on = fn(arg, l, r, id);
        }
        for (int32_t l = begins[id]; l >= 0; l = begins[l]) left[texts[l].len] = -1;
    }
    free(reversed);
    free(left);
    free(ends);
    free(begins);
    free(texts);
    return on;
}
