/* Whole-buffer operations on the flat weights: the checksum of a policy and random initial values.
 *
 * Called by the trainer (stored with every step) and clime-train init, on any thread that may read or write the buffer;
 * owns nothing. Invariant: both depend on names, shapes, types and bytes alone, never on the layout's order or padding,
 * so a folder's checksum stays comparable when the layout changes.
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

static enum clime_err read_host(const struct clime_weights_source *s, int64_t offset, int64_t bytes, const void **out,
                                struct clime_error *e) {
    (void)bytes;
    (void)e;
    *out = clime_weights_at(s->arg, offset);
    return CLIME_OK;
}

struct clime_weights_source clime_weights_in_host(const void *flat) {
    return (struct clime_weights_source){.most = INT64_MAX, .read = read_host, .arg = flat};
}

/* Bytes of a tensor with their own SHA-256, so that threads can share the work. */
#define SHA_CHUNK ((int64_t)2 << 20)

struct sha_chunk {
    int64_t at, n; /* bytes, of the whole buffer */
    uint8_t digest[32];
};

struct sha_job {
    const uint8_t *bytes; /* what was read */
    int64_t at;           /* its offset */
    struct sha_chunk *chunk;
};

static void sha_chunk(void *arg, int i) {
    const struct sha_job *j = arg;
    struct sha_chunk *c = &j->chunk[i];
    struct clime_sha256 sha;
    clime_sha256_init(&sha);
    clime_sha256_add(&sha, j->bytes + (c->at - j->at), (size_t)c->n);
    clime_sha256_done(&sha, c->digest);
}

/* The chunks of all tensors, in buffer order; first[i]: of tensor i, first[n_slices]: all. The caller frees them. */
static struct sha_chunk *cut_chunks(const struct clime_layout *l, int *first) {
    first[0] = 0;
    for (int i = 0; i < l->n_slices; i++)
        first[i + 1] = first[i] + (int)((l->slices[i].bytes + SHA_CHUNK - 1) / SHA_CHUNK);
    struct sha_chunk *chunks = xmalloc((size_t)first[l->n_slices] * sizeof *chunks);
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        for (int k = first[i]; k < first[i + 1]; k++) {
            int64_t at = (k - first[i]) * SHA_CHUNK, left = s->bytes - at;
            chunks[k].at = s->offset + at;
            chunks[k].n = left < SHA_CHUNK ? left : SHA_CHUNK;
        }
    }
    return chunks;
}

/* In buffer order, as many chunks at a time as one read returns: a single tensor, such as an expert's, has too few for
 * all threads. */
static enum clime_err hash_chunks(const struct clime_weights_source *from, int n_threads, struct sha_chunk *chunks,
                                  int n, struct clime_error *e) {
    struct clime_pool *pool = clime_pool_new(n > 1 ? n_threads : 1);
    enum clime_err err = CLIME_OK;
    CHECK(from->most >= SHA_CHUNK);
    for (int i = 0, many; i < n && !err; i += many) {
        struct sha_job j = {.at = chunks[i].at, .chunk = &chunks[i]};
        int64_t bytes = 0, end;
        for (many = 0; i + many < n; many++, bytes = end) {
            end = chunks[i + many].at + chunks[i + many].n - j.at;
            if (end > from->most) break;
        }
        err = from->read(from, j.at, bytes, (const void **)&j.bytes, e);
        if (!err) clime_pool_run(pool, many, sha_chunk, &j);
    }
    clime_pool_free(pool);
    return err;
}

static void add_header(struct clime_sha256 *sha, const struct clime_slice *s) {
    const char *type = clime_st_name(s->type);
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
    int *first = xmalloc((size_t)(l->n_slices + 1) * sizeof *first);
    struct sha_chunk *chunks = cut_chunks(l, first);
    enum clime_err err = hash_chunks(from, n_threads, chunks, first[l->n_slices], e);
    for (int i = 0; i < l->n_slices; i++) order[i] = &l->slices[i];
    qsort(order, (size_t)l->n_slices, sizeof *order, by_name);
    struct clime_sha256 sha;
    clime_sha256_init(&sha);
    for (int i = 0; i < l->n_slices && !err; i++) {
        int64_t slice = order[i] - l->slices;
        add_header(&sha, order[i]);
        for (int k = first[slice]; k < first[slice + 1]; k++)
            clime_sha256_add(&sha, chunks[k].digest, sizeof chunks[k].digest);
    }
    uint8_t digest[32];
    clime_sha256_done(&sha, digest);
    clime_sha256_hex(digest, hex);
    free(chunks);
    free(first);
    free(order);
    return err;
}

/* One tensor, filled chunk by chunk: a chunk depends on (seed, tensor, chunk) alone, so any thread may make it. */
#define INIT_CHUNK ((int64_t)1 << 18)
struct init_job {
    const struct clime_slice *slice;
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
    char *at = clime_weights_at(j->flat, s->offset);
    clime_rng_init(&rng, clime_hash64(key, 3));
    for (int64_t k = from; k < to; k++) {
        float v = s->kind == CLIME_PARAM_MATRIX ? (float)clime_rng_normal(&rng) * j->std
                  : s->kind == CLIME_PARAM_NORM ? 1.0f
                                                : 0.0f;
        clime_convert(CLIME_ST_F32, s->type, 1, &v, at + k * (int64_t)clime_dtype_bytes(s->type));
    }
}

void clime_weights_init(const struct clime_layout *l, void *flat, float std, uint64_t seed) {
    clime_weights_zero_padding(l, flat);
    struct clime_pool *pool = clime_pool_new(clime_layout_params(l, false) > INIT_CHUNK ? 0 : 1);
    for (int i = 0; i < l->n_slices; i++) {
        struct init_job j = {&l->slices[i], flat, std, seed, (uint64_t)i};
        clime_pool_run(pool, (int)((l->slices[i].n + INIT_CHUNK - 1) / INIT_CHUNK), init_chunk, &j);
    }
    clime_pool_free(pool);
}
