/* Encoder of TensorBoard's event files (tfevents.h). Called by the files' writers; no state. */
#include "trainer/watch/tfevents.h"

#include <string.h>

#include "common/err.h"

/* CRC-32C (Castagnoli). */
static uint32_t crc32c(const void *data, size_t len) {
    const uint8_t *p = data;
    uint32_t c = ~0u;
    for (size_t i = 0; i < len; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    }
    return ~c;
}

uint32_t clime_tfevents_crc(const void *data, size_t len) {
    uint32_t c = crc32c(data, len);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

void clime_tfevents_fixed(struct clime_buf *b, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) clime_buf_addc(b, (char)(v >> 8 * i));
}

static void varint(struct clime_buf *b, uint64_t v) {
    for (; v >= 0x80; v >>= 7) clime_buf_addc(b, (char)(v | 0x80));
    clime_buf_addc(b, (char)v);
}

void clime_tfevents_bytes(struct clime_buf *b, int field, const void *data, size_t len) {
    varint(b, (uint64_t)field << 3 | 2);
    varint(b, len);
    clime_buf_add(b, data, len);
}

void clime_tfevents_text(struct clime_buf *b, int field, const char *text) {
    clime_tfevents_bytes(b, field, text, strlen(text));
}

void clime_tfevents_int(struct clime_buf *b, int field, uint64_t v) {
    varint(b, (uint64_t)field << 3);
    varint(b, v);
}

void clime_tfevents_double(struct clime_buf *b, int field, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    varint(b, (uint64_t)field << 3 | 1);
    clime_tfevents_fixed(b, bits, 8);
}

void clime_tfevents_event(struct clime_buf *event, double seconds, int64_t step, const struct clime_buf *summary) {
    clime_buf_clear(event);
    clime_tfevents_double(event, 1, seconds);
    clime_tfevents_int(event, 2, (uint64_t)step);
    clime_tfevents_bytes(event, 5, summary->data, summary->len);
    CHECK(!event->full && !summary->full);
}

void clime_tfevents_version(struct clime_buf *event, double seconds) {
    clime_buf_clear(event);
    clime_tfevents_double(event, 1, seconds);
    clime_tfevents_text(event, 3, "brain.Event:2");
}

void clime_tfevents_record(struct clime_buf *out, const struct clime_buf *event) {
    size_t at = out->len;
    clime_tfevents_fixed(out, event->len, 8);
    clime_tfevents_fixed(out, out->data ? clime_tfevents_crc(out->data + at, 8) : 0, 4);
    clime_buf_add(out, event->data, event->len);
    clime_tfevents_fixed(out, clime_tfevents_crc(event->data, event->len), 4);
}
