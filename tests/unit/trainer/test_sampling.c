/* Which groups make a rollout: counting, filters, the order of what was left over, repetition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "trainer/rollout/repetition.h"
#include "trainer/sample/chooser.h"
#include "trainer/sample/filter.h"

/* ---- choosing ---- */

enum { MOST = 512, TARGET = 6 };

struct world { /* what the groups of a dataset would come to */
    struct clime_verdict verdict[MOST];
    bool fails[MOST];
};

/* Runs a rollout in which the groups end in an order drawn from rng, up to `ahead` of them in flight out of order.
 * Returns the number submitted; accepted[0..TARGET) are the accepted ones in ascending order. */
static int play(const struct world *w, int batch, bool in_order, struct clime_rng *rng, int *accepted) {
    struct clime_chooser c;
    int g;
    clime_chooser_init(&c, TARGET, batch, in_order);
    for (;;) {
        while ((g = clime_chooser_decide(&c)) >= 0) assert_int_not_equal(c.groups[g].decision, CLIME_UNDECIDED);
        if (clime_chooser_full(&c)) break;
        int missing = clime_chooser_missing(&c);
        assert_int_equal(missing % batch, 0);
        if (missing) clime_chooser_add(&c, missing);
        assert_in_range(c.n, 1, MOST);
        int waiting[MOST], n = 0;
        for (int i = 0; i < c.n; i++)
            if (!c.groups[i].ended) waiting[n++] = i;
        if (n == 0) continue;
        g = waiting[clime_rng_below(rng, (uint32_t)n)];
        if (w->fails[g])
            clime_chooser_fail(&c, g);
        else
            clime_chooser_finish(&c, g, &w->verdict[g]);
    }
    int n = 0, total = c.n;
    for (int i = 0; i < c.n; i++)
        if (c.groups[i].decision == CLIME_ACCEPTED) accepted[n++] = i;
    assert_int_equal(n, TARGET);
    assert_int_equal(clime_chooser_decide(&c), -1);
    clime_chooser_free(&c);
    return total;
}

static void make_world(struct world *w, struct clime_rng *rng, bool fallback) {
    for (int i = 0; i < MOST; i++) {
        w->verdict[i] = (struct clime_verdict){.keep = clime_rng_below(rng, 3) > 0, .keep_when_insufficient = fallback};
        w->fails[i] = clime_rng_below(rng, 10) == 0;
    }
}

/* In dataset order neither the choice nor how many are submitted depends on which group ends first; by arrival only
 * groups that may be used are, and as many. */
static void test_order_of_arrival(void **state) {
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 11);
    for (int round = 0; round < 300; round++) {
        struct world w;
        int first[TARGET], again[TARGET], batch = 1 + (int)clime_rng_below(&rng, 12);
        bool fallback = round % 2;
        make_world(&w, &rng, fallback);
        int n = play(&w, batch, true, &rng, first);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(play(&w, batch, true, &rng, again), n);
            assert_memory_equal(again, first, sizeof first);
        }
        if (!fallback) { /* exactly the first that are good */
            int want = 0;
            for (int i = 0; want < TARGET; i++)
                if (w.verdict[i].keep && !w.fails[i]) assert_int_equal(first[want++], i);
        }
        play(&w, batch, false, &rng, again);
        for (int k = 0; k < TARGET; k++) assert_true(!w.fails[again[k]] && (fallback || w.verdict[again[k]].keep));
    }
}

/* A rollout in order that is cut off after some decisions: what was dropped is gone, the rest is there again, ended or
 * not. It comes to the same groups, and submits as many. */
static void test_crash(void **state) {
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 12);
    for (int round = 0; round < 500; round++) {
        struct world w;
        struct clime_chooser c;
        int want[TARGET], got[TARGET], id[MOST], n = 0, batch = 1 + (int)clime_rng_below(&rng, 12), g;
        make_world(&w, &rng, round % 2);
        int total = play(&w, batch, true, &rng, want), crash = (int)clime_rng_below(&rng, (uint64_t)total);
        bool dropped[MOST] = {false};
        clime_chooser_init(&c, TARGET, batch, true); /* before the crash */
        for (int left = crash; left > 0 && !clime_chooser_full(&c); left--) {
            int missing = clime_chooser_missing(&c);
            if (missing) clime_chooser_add(&c, missing);
            for (g = 0; c.groups[g].ended;) g++;
            if (w.fails[g])
                clime_chooser_fail(&c, g);
            else
                clime_chooser_finish(&c, g, &w.verdict[g]);
            while ((g = clime_chooser_decide(&c)) >= 0) dropped[g] = c.groups[g].decision == CLIME_DROPPED;
        }
        int submitted = c.n;
        clime_chooser_free(&c);
        clime_chooser_init(&c, TARGET, batch, true); /* after it; id[] are the groups by place */
        for (int i = 0; i < submitted; i++)
            if (!dropped[i]) id[n++] = i;
        clime_chooser_add(&c, n);
        for (int i = 0; i < n; i++) c.groups[i].skipped = id[i] - i;
        while (!clime_chooser_full(&c)) {
            for (int i = 0, missing = clime_chooser_missing(&c); i < missing; i++) {
                clime_chooser_add(&c, 1);
                c.groups[n].skipped = submitted - n;
                id[n++] = submitted++;
            }
            for (g = 0; c.groups[g].ended;) g++;
            if (w.fails[id[g]])
                clime_chooser_fail(&c, g);
            else
                clime_chooser_finish(&c, g, &w.verdict[id[g]]);
            while (clime_chooser_decide(&c) >= 0) continue;
        }
        int k = 0;
        for (int i = 0; i < c.n; i++)
            if (c.groups[i].decision == CLIME_ACCEPTED) got[k++] = id[i];
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(submitted, total);
        clime_chooser_free(&c);
    }
}

static void test_fallback(void **state) {
    struct clime_chooser c;
    const struct clime_verdict bad = {.keep_when_insufficient = true, .reason = "zero_std_1.0"}, good = {.keep = true};
    (void)state;
    clime_chooser_init(&c, 2, 3, false);
    assert_int_equal(clime_chooser_missing(&c), 3);
    clime_chooser_add(&c, 3);
    assert_int_equal(clime_chooser_missing(&c), 0);
    clime_chooser_finish(&c, 2, &bad); /* two others are left: not needed */
    assert_int_equal(clime_chooser_decide(&c), 2);
    assert_int_equal(c.groups[2].decision, CLIME_DROPPED);
    clime_chooser_finish(&c, 0, &bad); /* without it there is one */
    assert_int_equal(clime_chooser_decide(&c), 0);
    assert_int_equal(c.groups[0].decision, CLIME_ACCEPTED);
    assert_int_equal(clime_chooser_missing(&c), 0);
    clime_chooser_fail(&c, 1);
    assert_int_equal(clime_chooser_decide(&c), 1);
    assert_int_equal(clime_chooser_missing(&c), 3);
    clime_chooser_add(&c, 3);
    clime_chooser_finish(&c, 5, &good);
    clime_chooser_finish(&c, 4, &good);
    assert_int_equal(clime_chooser_decide(&c), 5);
    assert_true(clime_chooser_full(&c));
    assert_int_equal(clime_chooser_decide(&c), -1); /* 4 came too late */
    assert_int_equal(c.groups[4].decision, CLIME_UNDECIDED);
    clime_chooser_free(&c);
}

enum fate { RUNNING, ENDED, USED, GONE };

/* Rollouts one after another from one pool: each gets its number of groups, every group is used once, those that were
 * complete first go first, and never too few or too many are there. */
static void one_pool(uint64_t seed) {
    struct clime_rng rng;
    struct clime_chooser c;
    enum fate fate[4096] = {RUNNING};
    int of[4096], place[4096], n_seen = 0, ended[4096], n_ended = 0; /* of: the pool's number -> a name for ever */
    clime_rng_init(&rng, seed);
    int batch = 1 + (int)clime_rng_below(&rng, 9);
    clime_chooser_init(&c, TARGET, batch, false);
    for (int rollout = 0; rollout < 20; rollout++) {
        int ahead = (int)clime_rng_below(&rng, 4), accepted = 0;
        c.wanted = TARGET * (1 + ahead);
        while (!clime_chooser_full(&c)) {
            int missing = clime_chooser_missing(&c), left = c.n - c.n_dropped;
            assert_true(missing >= 0 && (missing > 0) == (left < c.wanted));
            assert_true(missing < c.wanted - left + batch || missing == 0);
            clime_chooser_add(&c, missing);
            for (int i = 0; i < missing; i++) of[c.n - missing + i] = n_seen++;
            assert_true(n_seen < 4096);
            int g = (int)clime_rng_below(&rng, (uint64_t)c.n);
            if (c.groups[g].ended && c.groups[g].decision == CLIME_UNDECIDED && clime_rng_below(&rng, 3) == 0) {
                clime_chooser_reopen(&c, g);
                fate[of[g]] = RUNNING;
                int i = 0;
                while (ended[i] != of[g]) i++;
                memmove(ended + i, ended + i + 1, (size_t)(--n_ended - i) * sizeof *ended);
            } else if (!c.groups[g].ended && clime_rng_below(&rng, 8) == 0) {
                clime_chooser_fail(&c, g);
                fate[of[g]] = ENDED;
                ended[n_ended++] = of[g];
            } else if (!c.groups[g].ended) {
                const struct clime_verdict v = {.keep = clime_rng_below(&rng, 4) != 0};
                clime_chooser_finish(&c, g, &v);
                fate[of[g]] = ENDED;
                ended[n_ended++] = of[g];
            }
            if (clime_rng_below(&rng, 2)) continue; /* several end before anything is decided */
            for (int d; (d = clime_chooser_decide(&c)) >= 0;) {
                assert_int_equal(of[d], ended[0]);
                memmove(ended, ended + 1, (size_t)--n_ended * sizeof *ended);
                assert_int_equal(fate[of[d]], ENDED);
                bool used = c.groups[d].decision == CLIME_ACCEPTED;
                fate[of[d]] = used ? USED : GONE;
                accepted += used;
            }
        }
        assert_int_equal(accepted, TARGET);
        int n = c.n, left = c.n - c.n_accepted - c.n_dropped;
        clime_chooser_next(&c, place);
        assert_int_equal(c.n, left);
        assert_true(left < 4 * TARGET + batch); /* a pool, not a heap */
        for (int g = 0; g < n; g++) {
            assert_true((place[g] < 0) == (fate[of[g]] == USED || fate[of[g]] == GONE));
            if (place[g] < 0) continue;
            assert_true(place[g] <= g && c.groups[place[g]].ended == (fate[of[g]] == ENDED));
            of[place[g]] = of[g];
        }
    }
    clime_chooser_free(&c);
}

static void test_pool(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) one_pool(seed);
}

/* ---- filters ---- */

static void test_filters(void **state) {
    static const struct {
        double reward[4];
        int n;
        const char *reason; /* NULL = kept */
    } cases[] = {{{1, 1, 1, 1}, 4, "zero_std_1.0"},      {{0, 0, 0, 1}, 4, NULL},
                 {{-0.5, -0.5}, 2, "zero_std_-0.5"},     {{0.3, 0.3 + 1e-7, 0.3, 0.3}, 4, "zero_std_0.3"},
                 {{0.3, 0.3 + 1e-5, 0.3, 0.3}, 4, NULL}, {{7}, 1, "zero_std_7.0"}};
    static const char *const names[] = {"check_reward_nonzero_std", "slime.rollout.filter_hub.dynamic_sampling_filters."
                                                                    "check_reward_nonzero_std_with_fallback"};
    struct clime_error e = {0};
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        clime_filter_fn *filter = clime_filter_find(names[f], &e);
        assert_non_null(filter);
        for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
            struct clime_sample *s[4];
            struct clime_verdict v;
            for (int m = 0; m < 4; m++) {
                s[m] = clime_sample_new();
                s[m]->reward = cases[i].reward[m];
            }
            filter(s, cases[i].n, &v);
            assert_int_equal(v.keep, cases[i].reason == NULL);
            if (cases[i].reason) assert_string_equal(v.reason, cases[i].reason);
            assert_int_equal(v.keep_when_insufficient, f == 1);
            for (int m = 0; m < 4; m++) clime_sample_free(s[m]);
        }
    }
    assert_null(clime_filter_find("my.filter", &e));
    assert_non_null(strstr(e.msg, "check_reward_nonzero_std"));
}

/* ---- repetition: the verdicts are those of Python's zlib on the same texts ---- */

static void test_repetition(void **state) {
    char *text = malloc(80001);
    (void)state;
    memset(text, 'a', 80000);
    text[80000] = 0;
    assert_true(clime_has_repetition(text));
    text[10001] = 0;
    assert_true(clime_has_repetition(text));
    text[10000] = 0;
    assert_false(clime_has_repetition(text)); /* not more than 10,000 characters */
    for (int i = 0; i < 10000; i++) memcpy(text + 4 * i, "\xf0\x9f\x98\x80", 4);
    text[40000] = 0;
    assert_false(clime_has_repetition(text)); /* characters, not bytes */
    memcpy(text + 40000, "\xf0\x9f\x98\x80", 5);
    assert_true(clime_has_repetition(text));
    struct clime_rng rng;
    clime_rng_init(&rng, 3);
    for (int i = 0; i < 20000; i++) text[i] = (char)('a' + clime_rng_below(&rng, 26));
    text[20000] = 0;
    assert_false(clime_has_repetition(text));
    memset(text, 'b', 10000); /* only the end counts */
    assert_false(clime_has_repetition(text));
    assert_false(clime_has_repetition(NULL));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order_of_arrival), cmocka_unit_test(test_crash),
                                       cmocka_unit_test(test_fallback),         cmocka_unit_test(test_pool),
                                       cmocka_unit_test(test_filters),          cmocka_unit_test(test_repetition)};
    return cmocka_run_group_tests_name("sampling", tests, NULL, NULL);
}
