/* Whole-buffer operations on the flat weights: the checksum of a policy and random initial values.
 *
 * Called by the trainer (stored with every step) and clime-train init, on any thread that may read or write the buffer;
 * owns nothing. The invariant: both depend on names, shapes, types and bytes alone, never on the layout's order or
 * padding, so the checksum of a folder stays comparable when the layout changes.
 */
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/rng.h"
#include "common/thread/threadpool.h"
#include "model/weights/convert.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct clime_slice *const *)a)->name, (*(const struct clime_slice *const *)b)->name);
}

static enum clime_err read_host(const struct clime_weights_source *s, int64_t offset, int64_t n, const void **out,
                                struct clime_error *e) {
    (void)n;
    (void)e;
    *out = clime_weights_at(s->arg, s->dt, offset);
    return CLIME_OK;
}

struct clime_weights_source clime_weights_in_host(enum clime_dtype dt, const void *flat) {
    return (struct clime_weights_source){.dt = dt, .most = INT64_MAX, .read = read_host, .arg = flat};
}

/* Bytes of a tensor that have a SHA-256 of their own, so that threads can share the work. */
#define SHA_CHUNK ((int64_t)2 << 20)

struct sha_job {
    const uint8_t *bytes;
    int64_t n;
    uint8_t (*digest)[32];
};

static void sha_chunk(void *arg, int i) {
    const struct sha_job *j = arg;
    int64_t at = i * SHA_CHUNK, n = j->n - at < SHA_CHUNK ? j->n - at : SHA_CHUNK;
    struct clime_sha256 sha;
    clime_sha256_init(&sha);
    clime_sha256_add(&sha, j->bytes + at, (size_t)n);
    clime_sha256_done(&sha, j->digest[i]);
}

static void add_header(struct clime_sha256 *sha, const struct clime_slice *s, enum clime_dtype dt) {
    const char *type = dt == CLIME_BF16 ? "BF16" : "F32";
    clime_sha256_add(sha, s->name, strlen(s->name) + 1);
    clime_sha256_add(sha, type, strlen(type) + 1);
    for (int d = 0; d < s->n_dim; d++) {
        uint64_t dim = (uint64_t)s->dim[d]; /* little-endian hosts only, as everywhere in the flat buffer */
        clime_sha256_add(sha, &dim, 8);
    }
}

enum clime_err clime_weights_sha256(const struct clime_layout *l, const struct clime_weights_source *from,
                                    int n_threads, char hex[65], struct clime_error *e) {
    const struct clime_slice **order = xmalloc((size_t)l->n_slices * sizeof *order);
    int64_t size = (int64_t)clime_dtype_bytes(from->dt), longest = 0;
    for (int i = 0; i < l->n_slices; i++) {
        order[i] = &l->slices[i];
        if (l->slices[i].n > longest) longest = l->slices[i].n;
    }
    qsort(order, (size_t)l->n_slices, sizeof *order, by_name);
    int64_t most = from->most < longest ? from->most : longest; /* of one read, whole chunks */
    CHECK(most == longest || most * size % SHA_CHUNK == 0);
    int64_t n_chunks = (most * size + SHA_CHUNK - 1) / SHA_CHUNK;
    struct sha_job j = {.digest = xmalloc((size_t)n_chunks * sizeof *j.digest)};
    struct clime_pool *pool = clime_pool_new(n_chunks > 1 ? n_threads : 1);
    struct clime_sha256 sha;
    clime_sha256_init(&sha);
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < l->n_slices && !err; i++) {
        const struct clime_slice *s = order[i];
        add_header(&sha, s, from->dt);
        for (int64_t at = 0, n; at < s->n && !err; at += n) {
            n = s->n - at < most ? s->n - at : most;
            if ((err = from->read(from, s->offset + at, n, (const void **)&j.bytes, e))) break;
            j.n = n * size;
            int chunks = (int)((j.n + SHA_CHUNK - 1) / SHA_CHUNK);
            clime_pool_run(pool, chunks, sha_chunk, &j);
            clime_sha256_add(&sha, j.digest, (size_t)chunks * sizeof *j.digest);
        }
    }
    uint8_t digest[32];
    clime_sha256_done(&sha, digest);
    clime_sha256_hex(digest, hex);
    clime_pool_free(pool);
    free(j.digest);
    free(order);
    return err;
}

static void store(void *flat, enum clime_dtype dt, int64_t at, float v) {
    if (dt == CLIME_F32)
        ((float *)flat)[at] = v;
    else
        ((uint16_t *)flat)[at] = clime_bf16_of(v);
}

/* One tensor, filled chunk by chunk: a chunk is a function of (seed, tensor, chunk) alone, so any thread may make it.
 */
#define INIT_CHUNK ((int64_t)1 << 18)
struct init_job {
    const struct clime_slice *slice;
    enum clime_dtype dt;
    void *flat;
    float std;
    uint64_t seed, tensor;
};

static void init_chunk(void *arg, int i) {
    const struct init_job *j = arg;
    const struct clime_slice *s = j->slice;
    const uint64_t key[] = {j->seed, j->tensor, (uint64_t)i};
    int64_t from = i * INIT_CHUNK, to = from + INIT_CHUNK < s->n ? from + INIT_CHUNK : s->n;
    struct clime_rng rng;
    clime_rng_init(&rng, clime_hash64(key, 3));
    for (int64_t k = from; k < to; k++) {
        float v = s->type == CLIME_PARAM_MATRIX ? (float)clime_rng_normal(&rng) * j->std
                  : s->type == CLIME_PARAM_NORM ? 1.0f
                                                : 0.0f;
        store(j->flat, j->dt, s->offset + k, v);
    }
}

void clime_weights_init(const struct clime_layout *l, enum clime_dtype dt, void *flat, float std, uint64_t seed) {
    clime_weights_zero_padding(l, dt, flat);
    struct clime_pool *pool = clime_pool_new(l->n > INIT_CHUNK ? 0 : 1);
    for (int i = 0; i < l->n_slices; i++) {
        struct init_job j = {&l->slices[i], dt, flat, std, seed, (uint64_t)i};
        clime_pool_run(pool, (int)((l->slices[i].n + INIT_CHUNK - 1) / INIT_CHUNK), init_chunk, &j);
    }
    clime_pool_free(pool);
}
