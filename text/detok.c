/* Decoding: ids to text, as a stream or whole.
 *
 * Called by the server's emitter threads, the trainer and clime-tok. A struct clime_detok belongs to one sequence.
 * Invariant: text appended to out never changes with later ids, and is valid UTF-8. The whole decode uses the streaming
 * one, so the two cannot differ.
 * Choice: a byte-fallback run is held until it ends, because the library replaces a run that is not valid UTF-8 by one
 * U+FFFD per byte: its first byte depends on its last.
 */
#include <stdlib.h>

#include "text/tokenizer_int.h"
#include "text/unicode.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */
#define MAX_HELD_BYTES (1u << 30)

void clime_detok_init(struct clime_detok *d, const struct clime_tokenizer *t, bool skip_special) {
    memset(d, 0, sizeof *d);
    d->t = t;
    d->skip_special = skip_special;
    d->n_strip = (uint32_t)t->decoder.strip_start;
    clime_buf_init(&d->held, MAX_HELD_BYTES);
}

void clime_detok_free(struct clime_detok *d) {
    clime_buf_free(&d->held);
}

/* Emits whole characters, without the leading marks that Strip drops. */
static void emit(struct clime_detok *d, struct clime_str text, struct clime_buf *out) {
    const char *mark = d->t->decoder.strip_mark;
    for (; d->n_strip && text.len; d->n_strip--) {
        if (!clime_str_starts(text, mark)) {
            d->n_strip = 0;
            break;
        }
        text.ptr += strlen(mark);
        text.len -= strlen(mark);
    }
    if (text.len) clime_buf_add(out, text.ptr, text.len);
}

/* Length of the UTF-8 sequence that lead begins; 0 = invalid. */
static int sequence_length(uint8_t lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

/* True if byte may follow the n bytes at s. The second byte has narrower bounds after E0, ED, F0, F4 (RFC 3629). */
static bool may_follow(const uint8_t *s, int n, uint8_t byte) {
    uint8_t low = 0x80, high = 0xBF;
    if (n == 1 && s[0] == 0xE0) low = 0xA0;
    if (n == 1 && s[0] == 0xED) high = 0x9F;
    if (n == 1 && s[0] == 0xF0) low = 0x90;
    if (n == 1 && s[0] == 0xF4) high = 0x8F;
    return byte >= low && byte <= high;
}

static void emit_replacement(struct clime_detok *d, struct clime_buf *out) {
    emit(d, clime_str_of(REPLACEMENT), out);
}

/* Bytes of the stream: each maximal invalid subpart becomes one U+FFFD (the Unicode Standard 3.9, "U+FFFD substitution
 * of maximal subparts"). */
static void feed_bytes(struct clime_detok *d, struct clime_str bytes, struct clime_buf *out) {
    for (size_t i = 0; i < bytes.len;) {
        uint8_t byte = (uint8_t)bytes.ptr[i];
        if (d->n_tail) {
            if (!may_follow(d->tail, d->n_tail, byte)) {
                d->n_tail = 0;
                emit_replacement(d, out);
                continue; /* the byte may begin another sequence */
            }
            d->tail[d->n_tail++] = byte;
            i++;
            if (d->n_tail < sequence_length(d->tail[0])) continue;
            struct clime_str whole = {(const char *)d->tail, d->n_tail};
            d->n_tail = 0;
            emit(d, whole, out);
            continue;
        }
        size_t ascii = i;
        while (ascii < bytes.len && (uint8_t)bytes.ptr[ascii] < 0x80) ascii++;
        if (ascii > i) {
            struct clime_str run = {bytes.ptr + i, ascii - i};
            emit(d, run, out);
            i = ascii;
            continue;
        }
        i++;
        if (sequence_length(byte) > 1)
            d->tail[d->n_tail++] = byte;
        else
            emit_replacement(d, out);
    }
}

static void end_byte_run(struct clime_detok *d, struct clime_buf *out) {
    struct clime_str run = clime_buf_str(&d->held);
    const char *at = run.ptr, *end = run.ptr + run.len;
    bool valid = true;
    while (at < end && valid) valid = clime_unicode_next(&at, end) >= 0;
    if (valid)
        emit(d, run, out);
    else
        for (size_t i = 0; i < run.len; i++) emit_replacement(d, out);
    clime_buf_clear(&d->held);
}

static bool is_skipped(const struct clime_detok *d, int32_t id) {
    if (!d->skip_special || !clime_tokenizer_is_special(d->t, id)) return false;
    for (int i = 0; i < d->n_kept; i++)
        if (d->kept[i] == id) return false;
    return true;
}

void clime_detok_feed(struct clime_detok *d, int32_t id, struct clime_buf *out) {
    const struct clime_tokenizer *t = d->t;
    struct clime_str token = clime_tokenizer_decoder_text(t, id);
    if (!token.ptr || is_skipped(d, id)) return;
    bool first = !d->started;
    d->started = true;
    struct clime_str piece = clime_tokenizer_bytes(t, id);
    if (t->flags[id] & CLIME_TOKEN_BYTE) {
        clime_buf_add(&d->held, piece.ptr, piece.len);
        return;
    }
    if (d->held.len) end_byte_run(d, out);
    if (t->decoder.byte_level) {
        feed_bytes(d, piece, out);
        return;
    }
    if (t->decoder.spaced && !first) clime_buf_addc(out, ' ');
    if (!first || !t->decoder.first_differs) {
        emit(d, piece, out);
        return;
    }
    struct clime_matcher *m = clime_matcher_new(); /* once per text, for Metaspace only */
    struct clime_buf text;
    clime_buf_init(&text, MAX_HELD_BYTES);
    clime_decoder_token(&t->decoder, m, token, true, &text);
    emit(d, clime_buf_str(&text), out);
    clime_buf_free(&text);
    clime_matcher_free(m);
}

void clime_detok_begin_reply(struct clime_detok *d) {
    uint8_t begun[4];
    int n = 0;
    for (size_t back = 1; back <= 3 && back <= d->held.len && n == 0; back++) {
        const uint8_t *at = (const uint8_t *)d->held.data + d->held.len - back;
        bool whole = sequence_length(*at) <= (int)back;
        for (int i = 1; i < (int)back && !whole; i++) whole = !may_follow(at, i, at[i]);
        if (!whole) memcpy(begun, at, (size_t)(n = (int)back));
    }
    clime_buf_clear(&d->held);
    clime_buf_add(&d->held, (const char *)begun, (size_t)n);
}

void clime_detok_finish(struct clime_detok *d, struct clime_buf *out) {
    if (d->held.len) end_byte_run(d, out);
    if (d->n_tail) emit_replacement(d, out);
    d->n_tail = 0;
    clime_buf_free(&d->held);
}

void clime_tokenizer_decode(const struct clime_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                            struct clime_buf *out) {
    struct clime_detok d;
    clime_detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) clime_detok_feed(&d, ids[i], out);
    clime_detok_finish(&d, out);
}
