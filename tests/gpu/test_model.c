/* Whole models on the GPU: the paged forward's log-probabilities equal the training forward's bit for bit, in prefill,
 * in chunks and in decode; log-probabilities and gradients against the CPU table. The tiny checkpoints of tests/golden.
 */
#include "tests/gpu/gpu_test.h"

#include "model/backward.h"
#include "tests/unit/model/paged.h"

static const char *const MODELS[] = {"qwen3",        "qwen3_head64",    "qwen3_bias", "qwen2",
                                     "llama",        "llama_bias",      "glm4",       "glm4_nobias",
                                     "qwen3_moe",    "qwen3_moe_dense", "qwen2_moe",  "glm4_moe",
                                     "glm4_moe_air", "deepseek_v3",     "moonlight",  "glm4_moe_lite"};
static const int LENGTHS[] = {1, 2, 63, 64, 65, 130, 300, 17};
enum { N_SEQS = CLIME_COUNT(LENGTHS), MAX_LEN = 320, MAX_T = 700 };

struct batch {
    int T, n_loss;
    int32_t start[N_SEQS + 1], ids[MAX_T], row[MAX_T], target[MAX_T], loss_of_row[MAX_T];
    float inv_temp[MAX_T], g_logp[MAX_T], g_ent[MAX_T];
};

static void make_batch(struct batch *b, int V) {
    struct clime_rng r;
    clime_rng_init(&r, 11);
    memset(b, 0, sizeof *b);
    for (int s = 0; s < N_SEQS; s++) {
        b->start[s + 1] = b->start[s] + LENGTHS[s];
        for (int i = b->start[s]; i < b->start[s + 1]; i++) b->ids[i] = (int32_t)clime_rng_below(&r, (uint64_t)V);
        for (int i = b->start[s]; i < b->start[s + 1]; i++) {
            b->loss_of_row[i] = i + 1 < b->start[s + 1] ? b->n_loss : -1;
            if (b->loss_of_row[i] < 0) continue;
            b->row[b->n_loss] = i;
            b->target[b->n_loss] = b->ids[i + 1];
            b->g_logp[b->n_loss] = (float)clime_rng_normal(&r);
            b->g_ent[b->n_loss] = (float)clime_rng_normal(&r) * 0.1f;
            b->inv_temp[b->n_loss++] = clime_rng_below(&r, 2) ? 1 : 1 / 0.7f;
        }
    }
    b->T = b->start[N_SEQS];
}

static struct clime_model *open_model(const char *name, const char *device) {
    const char *root = getenv("CLIME_GOLDEN");
    char *dir = xasprintf("%s/%s", root ? root : "tests/golden", name);
    struct clime_error e = {0};
    struct clime_model *m;
    struct clime_model_options o = {
        .device = device, .dtype = "bf16", .max_pos = MAX_LEN, .dev = {.deterministic = true}};
    if (clime_model_open(dir, &o, &m, &e)) {
        printf("%s: %s\n", dir, e.msg);
        exit(1);
    }
    free(dir);
    return m;
}

/* Training forward and backward; the gradients come as host memory. */
static float *train(struct clime_model *m, const struct batch *b, int head_chunk, bool keep,
                    enum clime_recompute recompute, float *logp) {
    struct clime_train *t;
    struct clime_train_options o = {
        .max_rows = b->T, .max_seqs = N_SEQS, .head_chunk = head_chunk, .recompute = recompute, .keep_logits = keep};
    struct clime_packed_batch p = {b->T, N_SEQS, b->ids, b->start, b->n_loss, b->row, b->target, b->inv_temp};
    struct clime_error e = {0};
    float *grads = xmalloc((size_t)m->layout.n_grads * 4);
    if (clime_train_open(m, &o, &t, &e) || clime_train_forward(t, &p, true, logp, NULL, &e) ||
        clime_train_backward(t, &p, b->g_logp, b->g_ent, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    m->ops->copy_out(m->dev, grads, clime_train_grads(t), (size_t)m->layout.n_grads * 4);
    clime_train_close(t);
    return grads;
}

/* A training step takes no device memory beyond what was planned and reserved at open. Code is loaded by now. */
static bool allocates(struct clime_model *m, const struct batch *b) {
    struct clime_train *t;
    struct clime_train_options o = {.max_rows = b->T, .max_seqs = N_SEQS};
    struct clime_packed_batch p = {b->T, N_SEQS, b->ids, b->start, b->n_loss, b->row, b->target, b->inv_temp};
    struct clime_error e = {0};
    float logp[MAX_T];
    size_t before, after, total;
    if (clime_train_open(m, &o, &t, &e)) exit(1);
    m->ops->memory(m->dev, &before, &total);
    if (clime_train_forward(t, &p, true, logp, NULL, &e) || clime_train_backward(t, &p, b->g_logp, b->g_ent, &e))
        exit(1);
    double *sums = xcalloc((size_t)m->layout.n_grads / m->ops->norm_block + 1, sizeof *sums);
    m->ops->sumsq(m->dev, (size_t)m->layout.n_grads, clime_train_grads(t), sums);
    free(sums);
    m->ops->memory(m->dev, &after, &total);
    clime_train_close(t);
    return before != after;
}

static double distance(const float *a, const float *want, size_t n) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)want[i]) * ((double)a[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(diff) / (sqrt(norm) + 1e-30);
}

/* Runs the pieces as one batch and counts loss rows whose log-probability is not the trained one. */
static int step_differs(struct paged *p, const struct batch *b, const struct piece *x, int n, const float *want) {
    int32_t rows[MAX_T], target[MAX_T];
    float inv_temp[MAX_T], got[MAX_T];
    int loss[MAX_T], R = 0, at = 0, differ = 0;
    paged_step(p, x, n);
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < x[k].n; i++, at++) {
            int l = b->loss_of_row[b->start[x[k].seq] + x[k].pos + i];
            if (l < 0) continue;
            rows[R] = at;
            target[R] = b->target[l];
            inv_temp[R] = b->inv_temp[l];
            loss[R++] = l;
        }
    }
    if (R == 0) return 0;
    paged_logp(p, R, rows, target, inv_temp, got, NULL);
    for (int r = 0; r < R; r++) differ += memcmp(&got[r], &want[loss[r]], 4) != 0;
    return differ;
}

/* All sequences side by side, step tokens of each at a time. */
static int paged_differs(struct clime_model *m, const struct batch *b, int step, const float *want) {
    struct paged p;
    int differ = 0;
    paged_open(&p, m, MAX_T, MAX_LEN);
    for (int pos = 0; pos < MAX_LEN; pos += step) {
        struct piece x[N_SEQS];
        int n = 0;
        for (int s = 0; s < N_SEQS; s++) {
            int left = LENGTHS[s] - pos;
            if (left > 0) x[n++] = (struct piece){s, pos, left < step ? left : step, b->ids + b->start[s] + pos};
        }
        if (n) differ += step_differs(&p, b, x, n, want);
    }
    paged_close(&p);
    return differ;
}

static void test_model(struct gpu_test *t, const char *name) {
    struct clime_model *cpu = open_model(name, "cpu"), *gpu = open_model(name, "cuda");
    struct batch b;
    make_batch(&b, cpu->cfg.V);
    float want[MAX_T], got[MAX_T], again[MAX_T];
    size_t n = (size_t)cpu->layout.n_grads;
    float *g_cpu = train(cpu, &b, 0, false, CLIME_RECOMPUTE_NONE, want),
          *g_gpu = train(gpu, &b, 0, false, CLIME_RECOMPUTE_NONE, got),
          *g_again = train(gpu, &b, 37, false, CLIME_RECOMPUTE_FULL, again);
    char text[160];
    double logp = distance(got, want, (size_t)b.n_loss), grad = distance(g_gpu, g_cpu, n);
    snprintf(text, sizeof text, "%s: logp %.3g, gradients %.3g from the CPU's", name, logp, grad);
    printf("%s\n", text);
    check(t, logp < 5e-3 && grad < 4e-2, "values", text);
    check(t, memcmp(got, again, (size_t)b.n_loss * 4) == 0, "logp with full recompute and head chunks", name);
    check(t, distance(g_again, g_gpu, n) < 1e-5, "gradients with full recompute and head chunks", name);
    float *g_kept = train(gpu, &b, 37, true, CLIME_RECOMPUTE_NONE, again);
    check(t, memcmp(got, again, (size_t)b.n_loss * 4) == 0, "bits of logp, logits kept", name);
    check(t, memcmp(g_again, g_kept, n * 4) == 0, "bits of gradients, logits kept", name);
    free(g_kept);
    for (int level = CLIME_RECOMPUTE_SELECTIVE; level <= CLIME_RECOMPUTE_FULL; level++) {
        float *other = train(gpu, &b, 0, false, (enum clime_recompute)level, again);
        check(t, memcmp(got, again, (size_t)b.n_loss * 4) == 0, "bits of logp, recompute level", name);
        check(t, memcmp(g_gpu, other, n * 4) == 0, "bits of gradients, recompute level", name);
        free(other);
    }
    check(t, !allocates(gpu, &b), "a step allocates nothing", name);
    static const int STEPS[] = {MAX_LEN, 100, 64, 7, 1};
    for (size_t i = 0; i < CLIME_COUNT(STEPS); i++) {
        int differ = paged_differs(gpu, &b, STEPS[i], got);
        snprintf(text, sizeof text, "%s, steps of %d: %d of %d log-probabilities differ", name, STEPS[i], differ,
                 b.n_loss);
        check(t, differ == 0, "paged", text);
    }
    free(g_cpu);
    free(g_gpu);
    free(g_again);
    clime_model_close(cpu);
    clime_model_close(gpu);
}

int main(void) {
    struct gpu_test t;
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(MODELS); i++) test_model(&t, MODELS[i]);
    return gpu_test_close(&t);
}
