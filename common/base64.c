/* Base64 (see base64.h). Called where request bodies and replies carry bytes. */
#include "common/base64.h"

#include <string.h>

static int value_of(char c) { /* -1 = not in the alphabet */
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

enum clime_err clime_base64_decode(struct clime_str text, uint8_t *out, size_t *n_out, struct clime_error *e) {
    size_t pad = 0, n = 0;
    while (pad < 2 && pad < text.len && text.ptr[text.len - 1 - pad] == '=') pad++;
    bool good = text.len % 4 == 0;
    for (size_t i = 0; good && i < text.len; i += 4) {
        uint32_t bits = 0;
        size_t signs = i + 4 == text.len ? 4 - pad : 4;
        for (size_t k = 0; k < 4; k++) {
            int v = k < signs ? value_of(text.ptr[i + k]) : 0;
            good = good && v >= 0;
            bits = bits << 6 | (uint32_t)(v & 63);
        }
        for (size_t k = 0; k + 1 < signs; k++) out[n++] = (uint8_t)(bits >> (16 - 8 * k));
        good = good && (signs == 4 || !(bits & (signs == 3 ? 0xffu : 0xffffu))); /* unused bits must be 0 */
    }
    *n_out = n;
    return good ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "the text is no base64");
}

void clime_base64_encode(const void *data, size_t n, struct clime_buf *out) {
    static const char sign[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *x = data;
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t bits = (uint32_t)x[i] << 16 | (have > 1 ? (uint32_t)x[i + 1] << 8 : 0) | (have > 2 ? x[i + 2] : 0);
        char four[4];
        for (size_t k = 0; k < 4; k++) four[k] = k <= have ? sign[bits >> (18 - 6 * k) & 63] : '=';
        clime_buf_add(out, four, sizeof four);
    }
}
