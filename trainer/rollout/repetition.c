/* Repetition check by compression. Called once per sample of a rollout, main thread; owns nothing. Used for metrics
 * only. */
#include "trainer/rollout/repetition.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/err.h"

#define WINDOW 10000 /* characters */
#define RATIO 10

/* The last n characters of the text; NULL if it has at most n. */
static const char *tail(const char *text, size_t bytes, int n) {
    const char *p = text + bytes;
    for (; p > text && n > 0; n--) do
            p--;
        while (p > text && (*p & 0xc0) == 0x80);
    return p > text ? p : NULL;
}

bool clime_has_repetition(const char *text) {
    size_t bytes = text ? strlen(text) : 0;
    const char *from = bytes > WINDOW ? tail(text, bytes, WINDOW) : NULL;
    if (!from) return false;
    uLong size = (uLong)(text + bytes - from);
    uLongf packed = compressBound(size);
    Bytef *out = xmalloc(packed);
    int rc = compress2(out, &packed, (const Bytef *)from, size, Z_BEST_COMPRESSION);
    CHECK(rc == Z_OK); /* out has room for the worst case */
    free(out);
    return size > RATIO * packed;
}
