/* Unicode normal forms as in the tokenizers library (UAX #15).
 *
 * Called by text/normalize.c. Pure except for the calling thread's scratch.
 * Why not utf8proc_map: first, the library's tables are Unicode 9's, where later marks and decompositions are ordinary
 * characters, and ids must agree. LATER lists these; they are never decomposed, ordered or composed. Second, utf8proc
 * orders marks by swapping neighbours, which is quadratic in a run of marks; here a run is counting-sorted.
 * Invariant: between steps a code point has its combining class in bits 21..28 and LATER in bit 29.
 * Choice: for NFC, text below U+0300 is already normal and is copied, so English costs one scan.
 */
#include <stdlib.h>

#include "text/normalize.h"
#include "text/unicode.h"

#define CP_MASK 0x1FFFFF
#define CLASS_SHIFT 21
#define LATER_BIT (1 << 29)

struct range {
    int32_t first, last;
};

/* Characters of Unicode 10 to 16 with a combining class or a decomposition, and the first halves of their pairs. */
/* clang-format off */
static const struct range LATER[] = {
    {0x7FD, 0x7FD}, {0x897, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE}, {0xC3C, 0xC3C}, {0xD3B, 0xD3C}, {0xEBA, 0xEBA},
    {0x1715, 0x1715}, {0x1ABF, 0x1ACE}, {0x1DF6, 0x1DFA}, {0x32FF, 0x32FF}, {0xA7F2, 0xA7F4}, {0xA82C, 0xA82C},
    {0xAB69, 0xAB69}, {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x105E4, 0x105E4},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1611E}, {0x16121, 0x16129},
    {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1CCD6, 0x1CCF9},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};
/* clang-format on */

static bool is_later(int32_t cp) {
    size_t lo = 0, hi = CLIME_COUNT(LATER);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > LATER[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < CLIME_COUNT(LATER) && cp >= LATER[lo].first;
}

static int32_t tagged(int32_t cp) {
    return cp < 0x300 ? cp : cp | clime_unicode_combining_class(cp) << CLASS_SHIFT;
}

static int class_of(int32_t tag) {
    return (tag >> CLASS_SHIFT) & 0xFF;
}

/* Decomposes text into s->cps, tagged; returns the count. */
static size_t decompose(struct clime_str text, bool compat, struct clime_norm_scratch *s) {
    size_t n = 0;
    for (const char *at = text.ptr, *end = at + text.len; at < end;) {
        if (n + CLIME_UNICODE_MAX_DECOMPOSITION > s->cps_size) {
            s->cps_size = (s->cps_size ? s->cps_size * 2 : 1024);
            s->cps = xrealloc(s->cps, 2 * s->cps_size * sizeof *s->cps);
        }
        int32_t cp = clime_unicode_next(&at, end);
        if (cp < 0x80) {
            s->cps[n++] = cp;
        } else if (is_later(cp)) {
            s->cps[n++] = cp | LATER_BIT;
        } else {
            size_t parts = clime_unicode_decompose(cp, compat, s->cps + n);
            for (size_t end_part = n + parts; n < end_part; n++) s->cps[n] = tagged(s->cps[n]);
        }
    }
    return n;
}

/* Stable sort of a run of marks by combining class. */
static void sort_run(int32_t *run, size_t n, int32_t *room) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t x = run[i];
            size_t j = i;
            for (; j && class_of(run[j - 1]) > class_of(x); j--) run[j] = run[j - 1];
            run[j] = x;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[class_of(run[i]) + 1]++;
    for (int c = 1; c <= 256; c++) start[c] += start[c - 1];
    for (size_t i = 0; i < n; i++) room[start[class_of(run[i])]++] = run[i];
    memcpy(run, room, n * sizeof *run);
}

static void order_marks(int32_t *cps, size_t n, int32_t *room) {
    for (size_t i = 0; i < n; i++) {
        if (!class_of(cps[i])) continue;
        size_t start = i;
        while (i < n && class_of(cps[i])) i++;
        sort_run(cps + start, i - start, room);
    }
}

/* Composes each stretch between LATER characters; returns the new count. */
static size_t compose(int32_t *cps, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n;) {
        size_t start = i;
        for (; i < n && !(cps[i] & LATER_BIT); i++) cps[i] &= CP_MASK;
        size_t len = i > start ? clime_unicode_compose(cps + start, i - start) : 0;
        memmove(cps + kept, cps + start, len * sizeof *cps);
        kept += len;
        if (i < n) cps[kept++] = cps[i++] & CP_MASK;
    }
    return kept;
}

static void normalize_stretch(struct clime_str text, enum clime_norm_form form, struct clime_norm_scratch *s,
                              struct clime_buf *out) {
    size_t n = decompose(text, form == CLIME_NFKC || form == CLIME_NFKD, s);
    order_marks(s->cps, n, s->cps + s->cps_size);
    if (form == CLIME_NFC || form == CLIME_NFKC) n = compose(s->cps, n);
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        clime_buf_add(out, bytes, (size_t)clime_unicode_put(s->cps[i] & CP_MASK, bytes));
    }
}

/* True for the lead byte of a character from U+0300 on. */
static bool may_combine(char byte) {
    return (uint8_t)byte >= 0xCC;
}

static size_t char_end(struct clime_str text, size_t at) {
    do at++;
    while (at < text.len && ((uint8_t)text.ptr[at] & 0xC0) == 0x80);
    return at;
}

void clime_normalize_form(struct clime_str text, enum clime_norm_form form, struct clime_norm_scratch *s,
                          struct clime_buf *out) {
    if (form != CLIME_NFC) {
        normalize_stretch(text, form, s, out);
        return;
    }
    for (size_t done = 0; done < text.len;) {
        size_t start = done;
        while (start < text.len && !may_combine(text.ptr[start])) start++;
        if (start == text.len) {
            clime_buf_add(out, text.ptr + done, text.len - done);
            return;
        }
        size_t end = start;
        if (start > done) /* the character before may take the mark */
            do start--;
            while (start > done && ((uint8_t)text.ptr[start] & 0xC0) == 0x80);
        /* The stretch ends before a low character that no high one follows. */
        while (end < text.len) {
            size_t next = char_end(text, end);
            if (!may_combine(text.ptr[end]) && (next == text.len || !may_combine(text.ptr[next]))) break;
            end = next;
        }
        struct clime_str stretch = {text.ptr + start, end - start};
        clime_buf_add(out, text.ptr + done, start - done);
        normalize_stretch(stretch, form, s, out);
        done = end;
    }
}
