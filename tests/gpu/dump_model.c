/* What the trainer computes for given batches, written out for tests/gpu/against_torch.py to compare.
 *
 *   dump_model MODEL_DIR DEVICE N OUT...   OUT is a folder each, with batch.bin:
 *                                          i32 T, ids[T], target[T]; f32 inv_temp[T], g_logp[T], g_ent[T]
 *
 * One sequence of T <= N tokens a batch, every row a loss row. Written beside it: logits.f32 [T, V], logp.f32 and
 * entropy.f32 [T], and model.safetensors with the gradients under the names of their weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "model/backward_int.h"

static void fail(const char *what, const char *why) {
    fprintf(stderr, "dump_model: %s: %s\n", what, why);
    exit(1);
}

static FILE *open_in(const char *dir, const char *name, const char *mode) {
    char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, mode);
    if (!f) fail(path, "cannot be opened");
    free(path);
    return f;
}

static void read_words(FILE *f, void *out, size_t n) {
    if (fread(out, 4, n, f) != n) fail("batch.bin", "too short");
}

static void write_floats(const char *dir, const char *name, const float *x, size_t n) {
    FILE *f = open_in(dir, name, "wb");
    if (fwrite(x, 4, n, f) != n || fclose(f)) fail(name, "cannot be written");
}

static void run_batch(struct clime_train *t, int max_T, const char *dir) {
    struct clime_model *m = t->m;
    struct clime_error e;
    FILE *f = open_in(dir, "batch.bin", "rb");
    int32_t T;
    read_words(f, &T, 1);
    if (T < 1 || T > max_T) fail(dir, "more tokens than planned");
    size_t n = (size_t)T, V = (size_t)m->cfg.V, N = (size_t)m->layout.n_grads;
    int32_t *ids = xmalloc(3 * n * 4), *target = ids + n, *row = target + n, start[2] = {0, T};
    float *inv_temp = xmalloc(5 * n * 4), *g_logp = inv_temp + n, *g_ent = g_logp + n, *logp = g_ent + n,
          *entropy = logp + n, *big = xmalloc((N > n * V ? N : n * V) * 4);
    read_words(f, ids, 2 * n);
    read_words(f, inv_temp, 3 * n);
    fclose(f);
    for (int32_t i = 0; i < T; i++) row[i] = i;
    struct clime_packed_batch b = {T, 1, ids, start, T, row, target, inv_temp};

    clime_train_zero_grads(t);
    if (clime_train_forward(t, &b, true, logp, entropy, &e)) fail(dir, e.msg);
    m->ops->copy_out(m->dev, big, t->logits, n * V * 4); /* one chunk holds them all */
    write_floats(dir, "logits.f32", big, n * V);
    write_floats(dir, "logp.f32", logp, n);
    write_floats(dir, "entropy.f32", entropy, n);
    if (clime_train_backward(t, &b, g_logp, g_ent, &e)) fail(dir, e.msg);
    m->ops->copy_out(m->dev, big, clime_train_grads(t), N * 4);
    struct clime_layout l; /* of gradients as a folder has them */
    clime_layout_make(&m->cfg, CLIME_F32, &l);
    char *flat = xcalloc(1, (size_t)l.bytes);
    for (int i = 0; i < l.n_slices; i++)
        if (l.slices[i].grad >= 0) memcpy(flat + l.slices[i].offset, big + l.slices[i].grad, (size_t)l.slices[i].bytes);
    struct clime_weights_source from = clime_weights_in_host(flat);
    if (clime_weights_export(dir, &m->cfg, &l, &from, NULL, 0, &e)) fail(dir, e.msg);
    clime_layout_free(&l);
    free(flat);
    free(ids);
    free(inv_temp);
    free(big);
}

int main(int argc, char **argv) {
    struct clime_error e;
    struct clime_model *m;
    struct clime_train *t;
    if (argc < 5) fail("usage", "dump_model MODEL_DIR DEVICE N OUT...");
    clime_log_open("dump", CLIME_LOG_WARN);
    int max_T = (int)strtol(argv[3], NULL, 10);
    struct clime_model_options o = {.device = argv[2], .dtype = "bf16", .dev = {.deterministic = true}};
    struct clime_train_options to = {.max_rows = max_T, .max_seqs = 1, .head_chunk = max_T};
    if (clime_model_open(argv[1], &o, &m, &e)) fail(argv[1], e.msg);
    if (clime_train_open(m, &to, &t, &e)) fail(argv[1], e.msg);
    for (int i = 4; i < argc; i++) run_batch(t, max_T, argv[i]);
    clime_train_close(t);
    clime_model_close(m);
    return 0;
}
