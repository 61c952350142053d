/* One number per token (docs/numerics.md): the training forward's log-probabilities, packed, equal the paged forward's
 * bit for bit, whatever the batch, the chunks of prefill, the decode steps, the number of threads and the pages. All
 * families, fp32 and bf16, every instruction set of this machine. Unwritten KV slots hold NaN throughout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/rng.h"
#include "model/backward.h"
#include "tests/unit/model/paged.h"

static const char *const cases[] = {"qwen3",        "qwen3_head64",    "qwen3_bias", "qwen2",
                                    "llama",        "llama_bias",      "glm4",       "glm4_nobias",
                                    "qwen3_moe",    "qwen3_moe_dense", "qwen2_moe",  "glm4_moe",
                                    "glm4_moe_air", "deepseek_v3",     "moonlight",  "glm4_moe_lite"};

/* Lengths around the page of 64 keys, and one of several pages. */
static const int lengths[] = {1, 2, 63, 64, 65, 130, 300, 17};
#define N_SEQS ((int)CLIME_COUNT(lengths))
#define MAX_LEN 320
#define MAX_T 700

struct world {
    struct clime_model *m;
    int T, n_loss;
    int32_t start[CLIME_COUNT(lengths) + 1];
    int32_t ids[MAX_T], row[MAX_T], target[MAX_T]; /* every row but the last of a sequence predicts the next token */
    int loss_of_row[MAX_T];                        /* index into row, -1 = none */
    float inv_temp[MAX_T];
    float logp[MAX_T], entropy[MAX_T]; /* the training forward's, by loss index */
};

static bool open_world(struct world *w, const char *name, const char *dtype, const char *isa, int threads) {
    const char *root = getenv("CLIME_GOLDEN");
    char *dir = xasprintf("%s/%s", root ? root : "tests/golden", name);
    struct clime_error e = {0};
    struct clime_model_options o = {
        .device = "cpu", .dtype = dtype, .max_pos = MAX_LEN, .dev = {.n_threads = threads, .isa = isa}};
    memset(w, 0, sizeof *w);
    enum clime_err rc = clime_model_open(dir, &o, &w->m, &e);
    free(dir);
    if (rc && isa && strstr(e.msg, "instruction set")) return false; /* this machine lacks it */
    if (rc) fail_msg("%s: %s", name, e.msg);
    struct clime_rng r;
    clime_rng_init(&r, 11);
    for (int s = 0; s < N_SEQS; s++) {
        w->start[s + 1] = w->start[s] + lengths[s];
        for (int i = w->start[s]; i < w->start[s + 1]; i++)
            w->ids[i] = (int32_t)clime_rng_below(&r, (uint64_t)w->m->cfg.V);
    }
    w->T = w->start[N_SEQS];
    assert_true(w->T <= MAX_T);
    for (int s = 0; s < N_SEQS; s++) {
        for (int i = w->start[s]; i < w->start[s + 1]; i++) {
            w->loss_of_row[i] = i + 1 < w->start[s + 1] ? w->n_loss : -1;
            if (i + 1 == w->start[s + 1]) continue;
            w->row[w->n_loss] = i;
            w->target[w->n_loss] = w->ids[i + 1];
            w->inv_temp[w->n_loss++] = (float[]){1, 1 / 0.7f, 0.5f}[clime_rng_below(&r, 3)];
        }
    }
    return true;
}

static void train_forward(struct world *w, int head_chunk, bool forward_only, float *logp, float *entropy) {
    struct clime_train *t;
    struct clime_train_options o = {
        .max_rows = w->T, .max_seqs = N_SEQS, .head_chunk = head_chunk, .forward_only = forward_only};
    struct clime_packed_batch b = {w->T, N_SEQS, w->ids, w->start, w->n_loss, w->row, w->target, w->inv_temp};
    struct clime_error e = {0};
    assert_int_equal(clime_train_open(w->m, &o, &t, &e), CLIME_OK);
    if (clime_train_forward(t, &b, !forward_only, logp, entropy, &e)) fail_msg("%s", e.msg);
    clime_train_close(t);
}

/* Runs the pieces as one batch and compares every loss row in it. head_rows: rows of one head call, 0 = all. */
static void check_step(struct world *w, struct paged *p, const struct piece *pieces, int n, int head_rows,
                       const char *what) {
    int32_t rows[MAX_T], target[MAX_T];
    float inv_temp[MAX_T], logp[MAX_T], entropy[MAX_T];
    int loss[MAX_T], R = 0, at = 0;
    paged_step(p, pieces, n);
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < pieces[k].n; i++, at++) {
            int l = w->loss_of_row[w->start[pieces[k].seq] + pieces[k].pos + i];
            if (l < 0) continue;
            rows[R] = at;
            target[R] = w->target[l];
            inv_temp[R] = w->inv_temp[l];
            loss[R++] = l;
        }
    }
    if (head_rows <= 0) head_rows = R;
    for (int r = 0; r < R; r += head_rows) {
        int m = R - r < head_rows ? R - r : head_rows;
        /* with and without the entropy, which the server rarely wants */
        paged_logp(p, m, rows + r, target + r, inv_temp + r, logp + r, r % 2 ? NULL : entropy + r);
        for (int i = r; i < r + m; i++) {
            if (memcmp(&logp[i], &w->logp[loss[i]], 4) || (r % 2 == 0 && memcmp(&entropy[i], &w->entropy[loss[i]], 4)))
                fail_msg("%s, loss row %d: paged %.9g, trained %.9g", what, loss[i], logp[i], w->logp[loss[i]]);
        }
    }
}

static struct piece piece_of(const struct world *w, int seq, int pos, int n) {
    return (struct piece){seq, pos, n, w->ids + w->start[seq] + pos};
}

/* Every sequence alone, in chunks of a fixed size (1 = decode). */
static void check_chunks(struct world *w, int chunk, const char *what) {
    struct paged p;
    paged_open(&p, w->m, MAX_T, MAX_LEN);
    for (int s = 0; s < N_SEQS; s++) {
        for (int at = 0; at < lengths[s]; at += chunk) {
            struct piece x = piece_of(w, s, at, lengths[s] - at < chunk ? lengths[s] - at : chunk);
            check_step(w, &p, &x, 1, 0, what);
        }
    }
    paged_close(&p);
}

/* Batches of some sequences, each with a random number of its next tokens, as a scheduler mixes prefill and decode. */
static void check_mixed(struct world *w, uint64_t seed, const char *what) {
    struct paged p;
    struct clime_rng r;
    int pos[CLIME_COUNT(lengths)] = {0}, left = w->T;
    clime_rng_init(&r, seed);
    paged_open(&p, w->m, MAX_T, MAX_LEN);
    while (left > 0) {
        struct piece pieces[CLIME_COUNT(lengths)];
        int n = 0, first = (int)clime_rng_below(&r, (uint64_t)N_SEQS); /* another order in every batch */
        for (int k = 0; k < N_SEQS; k++) {
            int s = (first + k) % N_SEQS, rest = lengths[s] - pos[s];
            if (rest == 0 || clime_rng_below(&r, 3) == 0) continue;
            int len = clime_rng_below(&r, 2) ? 1 : 1 + (int)clime_rng_below(&r, 90);
            if (len > rest) len = rest;
            pieces[n++] = piece_of(w, s, pos[s], len);
            pos[s] += len;
            left -= len;
        }
        if (n) check_step(w, &p, pieces, n, (int)clime_rng_below(&r, 4), what);
    }
    paged_close(&p);
}

static void check_model(const char *name, const char *dtype, const char *isa) {
    struct world w, other;
    char what[96];
    if (!open_world(&w, name, dtype, isa, 2)) return;
    snprintf(what, sizeof what, "%s %s %s", name, dtype, isa);
    train_forward(&w, 0, false, w.logp, w.entropy);
    static const int chunks[] = {1, 7, 64, MAX_LEN};
    for (size_t i = 0; i < CLIME_COUNT(chunks); i++) check_chunks(&w, chunks[i], what);
    for (uint64_t seed = 0; seed < 3; seed++) check_mixed(&w, seed, what);

    /* the training forward by other ways: chunks of the head, scoring only, other thread counts */
    static const int threads[] = {1, 3};
    for (size_t i = 0; i < CLIME_COUNT(threads); i++) {
        assert_true(open_world(&other, name, dtype, isa, threads[i]));
        train_forward(&other, i ? 13 : 1, i == 0, other.logp, other.entropy);
        assert_memory_equal(other.logp, w.logp, sizeof w.logp);
        assert_memory_equal(other.entropy, w.entropy, sizeof w.entropy);
        clime_model_close(other.m);
    }
    clime_model_close(w.m);
}

static void check_all(const char *dtype) {
    static const char *const isas[] = {"generic", "avx2", "avx512", "amx"};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++)
        for (size_t k = 0; k < CLIME_COUNT(isas); k++) check_model(cases[i], dtype, isas[k]);
}

static void test_fp32(void **state) {
    (void)state;
    check_all("f32");
}

static void test_bf16(void **state) {
    (void)state;
    check_all("bf16");
}

/* A page copied to another place serves as well as the original: what prefix sharing with a partly filled page needs.
 */
static void test_copy_page(void **state) {
    (void)state;
    struct world w;
    struct paged p;
    assert_true(open_world(&w, "qwen3", "bf16", NULL, 1));
    train_forward(&w, 0, true, w.logp, w.entropy);
    paged_open(&p, w.m, MAX_T, MAX_LEN);
    int s = 5, at = 100; /* the sequence of 130 tokens */
    struct piece x = piece_of(&w, s, 0, at);
    check_step(&w, &p, &x, 1, 0, "original");
    int twin = PAGED_MAX_SEQS - 1;
    for (int b = 0; b < 2; b++)
        clime_kv_copy_page(w.m, &p.kv, paged_page(s, b, p.max_pages), paged_page(twin, b, p.max_pages));
    x = piece_of(&w, s, at, lengths[s] - at);
    struct piece y = x;
    y.seq = twin;
    float a[2], ones[] = {1, 1};
    int32_t rows[] = {x.n - 1, 2 * x.n - 1}, target[] = {3, 3};
    paged_step(&p, (struct piece[]){x, y}, 2);
    paged_logp(&p, 2, rows, target, ones, a, NULL);
    assert_memory_equal(&a[0], &a[1], 4);
    paged_close(&p);
    clime_model_close(w.m);
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_copy_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
