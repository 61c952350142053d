/* Fuzzes the safetensors header and the reader of uploads (PUT /weights).
 *
 * A case is a whole upload for a tiny model. Few mutations keep the length in the first 8 bytes right, so each case is
 * tried a second time with a length that reaches to its last brace.
 * Invariants: an accepted header's tensors lie one after the other, each as long as its shape times its type; an upload
 * that is fed in pieces ends as the whole one does, with the same error or the same weights; the buffer has exactly the
 * layout's size, so that the address sanitizer sees a write outside.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "model/weights/safetensors.h"
#include "model/weights/weights.h"

static const struct clime_config cfg = {.family = CLIME_QWEN3,
                                        .D = 8,
                                        .L = 1,
                                        .H = 2,
                                        .HK = 1,
                                        .Dh = 2,
                                        .F = 8,
                                        .V = 8,
                                        .max_pos = 16,
                                        .tied = true,
                                        .qk_norm = true};
static struct clime_layout layout;

static void check_header(const char *json, size_t len) {
    struct clime_st_header h;
    struct clime_error e = {0};
    uint64_t at = 0;
    if (clime_st_header_parse(json, len, &h, &e)) {
        CHECK(e.code && e.msg[0]);
        return;
    }
    for (int i = 0; i < h.n; i++) {
        const struct clime_st_tensor *t = &h.tensors[i];
        CHECK(t->begin == at && t->begin <= t->end && t->n_dim <= CLIME_ST_MAX_DIMS);
        uint64_t n = 1;
        for (int k = 0; k < t->n_dim; k++) n *= (uint64_t)t->dim[k]; /* no overflow where nothing is empty */
        CHECK((t->begin == t->end) == (n == 0) && (n == 0 || (t->end - t->begin) % n == 0));
        at = t->end;
    }
    CHECK(at == h.data_bytes);
    clime_st_header_free(&h);
}

/* Feeds the upload in pieces of `step` bytes into flat. */
static enum clime_err upload(const char *data, size_t len, size_t step, void *flat, struct clime_error *e) {
    struct clime_weights_reader *r = clime_weights_reader_new(&cfg, &layout, flat);
    enum clime_err rc = CLIME_OK;
    for (size_t at = 0; at < len && !rc; at += step)
        rc = clime_weights_reader_feed(r, data + at, len - at < step ? len - at : step, e);
    if (!rc) rc = clime_weights_reader_done(r, e);
    clime_weights_reader_free(r);
    return rc;
}

static void check_upload(const char *data, size_t len) {
    size_t bytes = (size_t)layout.bytes;
    void *whole = xmalloc(bytes), *pieces = xmalloc(bytes);
    struct clime_error a = {0}, b = {0};
    enum clime_err rc = upload(data, len, len ? len : 1, whole, &a);
    CHECK(rc == upload(data, len, 1 + len % 37, pieces, &b));
    CHECK(rc ? a.msg[0] && strcmp(a.msg, b.msg) == 0 : memcmp(whole, pieces, bytes) == 0);
    free(whole);
    free(pieces);
}

static void target(const char *data, size_t len) {
    check_upload(data, len);
    size_t brace = len;
    while (brace > 8 && data[brace - 1] != '}') brace--;
    if (brace <= 8) return;
    check_header(data + 8, brace - 8);
    char *copy = xmalloc(len);
    memcpy(copy, data, len);
    for (int i = 0; i < 8; i++) copy[i] = (char)((uint64_t)(brace - 8) >> 8 * i);
    check_upload(copy, len);
    free(copy);
}

static const char *const words[] = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "\"",
                                    "\"dtype\":\"F32\"",
                                    "\"F16\"",
                                    "\"BF16\"",
                                    "\"I64\"",
                                    "\"shape\":[",
                                    "\"data_offsets\":[",
                                    "\"__metadata__\":{}",
                                    "18446744073709551615",
                                    "9223372036854775807",
                                    "-1",
                                    "0",
                                    "8",
                                    "model.norm.weight",
                                    "\\u0000",
                                    NULL};

int main(int argc, char **argv) {
    clime_layout_make(&cfg, CLIME_F32, &layout);
    void *flat = xcalloc(1, (size_t)layout.bytes);
    clime_weights_init(&layout, flat, 0.02f, 1);
    struct clime_weights_writer *w = clime_weights_writer_new(&layout, flat);
    size_t len = (size_t)clime_weights_writer_length(w);
    char *body = xmalloc(len);
    for (size_t at = 0; at < len;) at += (size_t)clime_weights_writer_read(w, body + at, len - at);
    const struct clime_str seeds[] = {{body, len}};
    const struct fuzz f = {
        .seeds = seeds, .n_seeds = 1, .words = words, .max_bytes = len + 1024, .iterations = 20000, .target = target};
    int status = fuzz_main(argc, argv, &f);
    clime_weights_writer_free(w);
    free(body);
    free(flat);
    clime_layout_free(&layout);
    return status;
}
