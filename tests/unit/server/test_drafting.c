/* Drafting without an engine: the index of contexts beside a naive one, how many guesses a step is worth, and when
 * steps may be started ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/rng.h"
#include "server/schedule/draft_cost.h"
#include "server/schedule/draft_index.h"
#include "server/schedule/drafting.h"

/* ---- the index --------------------------------------------------------------------------------------------- */

enum { N_TEXTS = 6, TEXT = 3000, LENGTHS = 3 };
static const int LENGTH[LENGTHS] = {2, 4, 8};

struct naive {
    int32_t text[N_TEXTS][TEXT];
    int n[N_TEXTS];
    uint64_t family[N_TEXTS];
    struct { /* what was learned, in its order */
        int text, at;
    } learned[N_TEXTS * TEXT];
    int n_learned;
};

/* The rule of a slot, over all that was learned of one context: the answer, how often it came in a row; false: none. */
static bool answer(const struct naive *m, uint64_t family, const int32_t *ids, int n, int length, int32_t *next,
                   int *seen) {
    *seen = 0;
    for (int i = 0; n >= length && i < m->n_learned; i++) {
        const int32_t *text = m->text[m->learned[i].text];
        int at = m->learned[i].at;
        if (m->family[m->learned[i].text] != family || at < length ||
            memcmp(text + at - length, ids + n - length, (size_t)length * sizeof *ids) != 0)
            continue;
        if (*seen > 0 && *next == text[at]) {
            *seen += *seen < 15;
        } else if ((*seen /= 2) == 0) {
            *next = text[at];
            *seen = 1;
        }
    }
    return *seen > 0;
}

/* Texts of few tokens, one of which is a sibling of another; some go in circles. */
static int32_t next_token(struct naive *m, int t, struct clime_rng *rng) {
    int n = m->n[t];
    if (t % 3 == 0 && n > 20 && clime_rng_below(rng, 30)) return m->text[t][n - 13];
    return (int32_t)clime_rng_below(rng, t % 2 ? 3 : 40);
}

/* Every guess is some length's answer, and there is one whenever there is an answer of a chance worth it: the index
 * says what the naive one says, but where a context was displaced and learned again. */
static void test_index(void **state) {
    (void)state;
    struct clime_draft_index *x = clime_draft_index_open(1 << 20);
    struct naive *m = xcalloc(1, sizeof *m);
    struct clime_draft_trust full = {0, 0}, trust = {0, 0};
    struct clime_rng rng;
    int n_guesses = 0, n_right = 0, n_displaced = 0;
    clime_rng_init(&rng, 3);
    for (int t = 0; t < N_TEXTS; t++) m->family[t] = 100 + (uint64_t)(t == 5 ? 0 : t);
    for (int step = 0; step < 4000; step++) {
        int t = (int)clime_rng_below(&rng, N_TEXTS), n = m->n[t];
        int32_t id = next_token(m, t, &rng);
        if (step % 7 == 0) {
            float chance[8];
            int32_t copy[TEXT + 8];
            memcpy(copy, m->text[t], (size_t)n * sizeof *copy);
            int found = clime_draft_index_guess(x, m->family[t], copy, n, 8, &full, chance);
            for (int k = 0; k <= found && k < 8; k++) {
                int32_t next = -1;
                int seen, n_answers = 0;
                bool said = false;
                for (int l = 0; l < LENGTHS; l++) {
                    if (!answer(m, m->family[t], copy, n + k, LENGTH[l], &next, &seen)) continue;
                    n_answers++;
                    said |= k < found && next == copy[n + k];
                }
                if (k < found) assert_true(n_answers > 0 && chance[k] >= 0.05f && chance[k] <= (k ? chance[k - 1] : 1));
                n_displaced += k < found && !said;
                if (k == 0 && found == 0 && step < 500) assert_int_equal(n_answers, 0); /* chances are 0.5 at first */
            }
            n_guesses += found > 0;
            n_right += found > 0 && copy[n] == id;
        }
        m->text[t][m->n[t]++] = id;
        bool drawn = clime_rng_below(&rng, 4) > 0;
        clime_draft_index_learn(x, m->family[t], m->text[t], n, drawn ? &trust : NULL);
        m->learned[m->n_learned].text = t;
        m->learned[m->n_learned++].at = n;
    }
    assert_true(n_guesses > 300 && n_right > 100 && n_displaced < 10);
    clime_draft_index_close(x);
    free(m);
}

/* Chances are what they say: of texts that repeat with a known rate, and of noise, as many guesses are right. */
static void test_chances(void **state) {
    (void)state;
    struct clime_draft_index *x = clime_draft_index_open(1 << 16);
    struct clime_rng rng;
    struct clime_draft_trust trust[2] = {{0, 0}, {0, 0}};
    double sum[2] = {0, 0};
    int n_guesses[2] = {0, 0}, n_right[2] = {0, 0};
    static int32_t text[2][20008];
    clime_rng_init(&rng, 5);
    for (int n = 0; n < 20000; n++)
        for (int t = 0; t < 2; t++) { /* one text in circles that fails at one token of 10; one of noise */
            float chance[8];
            int found = n > 2000 ? clime_draft_index_guess(x, (uint64_t)t, text[t], n, 8, &trust[t], chance) : 0;
            int32_t guess = text[t][n];
            bool repeats = t == 0 && n > 100 && clime_rng_below(&rng, 10) > 0;
            text[t][n] = repeats ? (int32_t)(n % 50) : (int32_t)clime_rng_below(&rng, 30);
            if (found > 0) {
                n_guesses[t]++;
                n_right[t] += guess == text[t][n];
                sum[t] += chance[0];
            }
            clime_draft_index_learn(x, (uint64_t)t, text[t], n, &trust[t]);
        }
    assert_true(n_guesses[0] > 15000 && n_right[0] > n_guesses[0] * 7 / 10);
    for (int t = 0; t < 2; t++)
        if (n_guesses[t] > 1000) assert_true(sum[t] < 1.15 * n_right[t] + 0.1 * n_guesses[t]);
    assert_true(n_guesses[1] < 6000); /* one text's noise is not made up for by what the other keeps */
    clime_draft_index_close(x);
}

/* A table of few slots: what is displaced is gone, nothing else happens; tokens may be any. */
static void test_small_index(void **state) {
    (void)state;
    struct clime_draft_index *x = clime_draft_index_open(16);
    struct clime_rng rng;
    int32_t text[508];
    struct clime_draft_trust trust = {0, 0};
    float chance[8];
    clime_rng_init(&rng, 9);
    for (int i = 0; i < 5000; i++) {
        int n = i % 500;
        text[n] = (int32_t)clime_rng_below(&rng, INT32_MAX);
        if (n > 0) clime_draft_index_learn(x, clime_rng_below(&rng, 3), text, n, &trust);
        int found = clime_draft_index_guess(x, clime_rng_below(&rng, 3), text, n + 1, 8, &trust, chance);
        assert_true(found >= 0 && found <= 8);
    }
    clime_draft_index_close(x);
}

/* ---- the choice -------------------------------------------------------------------------------------------- */

/* Runs n_steps of n_seqs sequences on a device whose step of T rows takes us(T), each guess right with `chance`;
 * returns the gain in tokens a second over steps without. guesses: of a step. */
static double run(int n_seqs, int n_steps, int n_guesses, float chance, float (*us)(int T), double *rows) {
    struct clime_draft_cost c;
    float chances[256];
    double tokens = 0, time = 0;
    clime_draft_cost_init(&c);
    *rows = 0;
    for (int i = 0; i < n_guesses; i++) chances[i] = chance;
    for (int s = 0; s < n_steps; s++) {
        int k = clime_draft_cost_choose(&c, n_seqs, chances, n_guesses);
        assert_true(k >= 0 && k <= n_guesses);
        float took = us(n_seqs + k) * (1 + 0.01f * (float)(s % 5)); /* a machine is never quite quiet */
        clime_draft_cost_step(&c, n_seqs + k, k > 0, took);
        tokens += n_seqs + k * (double)chance;
        time += took;
        *rows += k;
    }
    for (int i = 0; i < CLIME_DRAFT_SIZES; i++) /* what is counted stays small, however long a server runs */
        assert_true(c.plain[i].n < 2 * CLIME_DRAFT_LAST && c.guessed[i].n < 2 * CLIME_DRAFT_LAST);
    *rows /= n_steps;
    return tokens / time / (n_seqs / (1.02 * us(n_seqs)));
}

static float reads_weights(int T) { /* rows cost little */
    return 1000 + 5.0f * (float)T;
}

static float computes(int T) { /* each row costs as much as the others */
    return 10 + 100.0f * (float)T;
}

static float in_tiles(int T) { /* of 16 rows */
    return 1000 * (float)((T + 15) / 16);
}

static void test_choice(void **state) {
    (void)state;
    double rows;
    /* worth it: most rows run, and most of the gain is there */
    assert_true(run(1, 4000, 7, 0.9f, reads_weights, &rows) > 5 && rows > 6);
    assert_true(run(8, 4000, 56, 0.5f, reads_weights, &rows) > 2.5 && rows > 40);
    /* up to a tile, and no further, where a second one would not pay */
    assert_true(run(10, 4000, 30, 0.4f, in_tiles, &rows) > 1.2 && rows > 5 && rows < 7);
    /* not worth it: what was tried cost less than 2 % */
    for (int n = 1; n <= 200; n = n * 3 + 1) {
        assert_true(run(n, 4000, 50, 0.01f, reads_weights, &rows) > 0.98);
        assert_true(run(n, 4000, 7, 0.3f, computes, &rows) > 0.98);
        assert_true(run(n, 4000, 50, 0.3f, computes, &rows) > 0.98);
        assert_true(run(n, 4000, 50, 0.02f, in_tiles, &rows) > 0.98);
    }
}

/* ---- looks ------------------------------------------------------------------------------------------------- */

/* A full batch has no room for guesses: nearly all of its steps are started before the one before is done. */
static void test_full_batch(void **state) {
    (void)state;
    struct clime_step_item items[2] = {{.n_rows = 1, .sample = true}, {.n_rows = 1, .sample = true}};
    struct clime_step_plan plan = {.items = items, .n_items = 2, .T = 2};
    const struct clime_drafting_options o = {.most_rows = 2, .most_of_one = 8, .adaptive = true};
    struct clime_drafting *d = clime_drafting_open(&o);
    bool started = false;
    int n_ahead = 0;
    for (int step = 0; step < 160; step++) { /* as the engine does */
        if (!started) clime_drafting_plan(d, NULL, &plan);
        started = !clime_drafting_looks(d);
        n_ahead += started;
        clime_drafting_done(d, &plan, 1000);
    }
    clime_drafting_close(d);
    assert_in_range(n_ahead, 140, 160);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index),  cmocka_unit_test(test_chances),    cmocka_unit_test(test_small_index),
        cmocka_unit_test(test_choice), cmocka_unit_test(test_full_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
