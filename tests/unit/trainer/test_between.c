/* Gradients between ranks: how they are cut, of models as large as they come (nothing of them is in memory). What they
 * add up to is test_ranks' and tests/e2e/test_ranks.py's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/backward_int.h"
#include "trainer/learn/between.h"

enum { NORM_BLOCK = 4096 };

static const struct clime_config QWEN3_4B = {.family = CLIME_QWEN3,
                                             .D = 2560,
                                             .L = 36,
                                             .H = 32,
                                             .HK = 8,
                                             .Dh = 128,
                                             .F = 9728,
                                             .V = 151936,
                                             .tied = true,
                                             .qk_norm = true},
                                 QWEN3_32B = {.family = CLIME_QWEN3,
                                              .D = 5120,
                                              .L = 64,
                                              .H = 64,
                                              .HK = 8,
                                              .Dh = 128,
                                              .F = 25600,
                                              .V = 151936,
                                              .qk_norm = true},
                                 QWEN3_30B_A3B = {.family = CLIME_QWEN3_MOE,
                                                  .D = 2048,
                                                  .L = 48,
                                                  .H = 32,
                                                  .HK = 4,
                                                  .Dh = 128,
                                                  .F = 6144,
                                                  .F_expert = 768,
                                                  .V = 151936,
                                                  .qk_norm = true,
                                                  .router = {.E = 128, .k = 8, .n_groups = 1, .k_groups = 1}};

/* Of a layer's pieces none is waited for before the layer below computes: all have a place, beside one of the layer
 * above that is not added yet. */
static void check_pieces(const struct clime_config *c, int world, bool ring) {
    struct clime_model m = {.cfg = *c};
    struct clime_ring none;
    struct clime_parts parts;
    struct clime_plan plan = {0};
    struct clime_between b = {0};
    clime_layout_make(c, CLIME_BF16, &m.layout);
    if (ring) m.ring = &none;
    clime_parts_make(&parts, &m.layout, NORM_BLOCK, (struct clime_part){1, world});
    clime_between_plan(&b, &m, &parts, &plan);
    int64_t at = m.layout.n_grads, layer = 0;
    for (int i = 0, n; i < b.n_pieces; i += n) {
        const struct clime_piece *p = &b.pieces[i];
        n = p->of;
        assert_int_equal(p->hi, at);
        assert_true(p->lo < at);
        for (int k = 0; k < n; k++) {
            assert_int_equal(p[k].share, k);
            assert_true(p[k].lo == p->lo && p[k].hi == p->hi && p[k].of == n);
        }
        at = p->lo;
    }
    assert_int_equal(at, 0);
    for (int s = 1, i = 0; s < clime_train_stages(&m.layout) - 1; s++) {
        const int64_t from = clime_train_stage(&m.layout, s), to = clime_train_stage(&m.layout, s - 1);
        int n = 0;
        for (; b.pieces[i].lo >= to; i++) {
        }
        for (; b.pieces[i].lo >= from; i++) n++;
        assert_in_range(n, 0, CLIME_BETWEEN_PLACES - 1);
        if (to - from > layer) layer = to - from;
    }
    /* all ranks have as much of a piece, so what lies received is little more than a layer and a third, or of small
     * layers half a GiB */
    const size_t most = (size_t)layer * sizeof(float) * 11 / 8 + (1 << 20), least = (size_t)1 << 29;
    assert_in_range(clime_plan_bytes(&plan), 1, most > least ? most : least);
    clime_between_free(&b);
    clime_parts_free(&parts);
    clime_layout_free(&m.layout);
}

static void test_a_layer_has_places(void **state) {
    (void)state;
    const struct clime_config *const models[] = {&QWEN3_4B, &QWEN3_32B, &QWEN3_30B_A3B};
    for (size_t i = 0; i < CLIME_COUNT(models); i++)
        for (int world = 2; world <= 8; world *= 2)
            for (int ring = 0; ring < 2; ring++) check_pieces(models[i], world, ring);
}

/* Experts that stay with their rank alone are nobody else's to send: what lies received is of the other weights. Those
 * that several ranks have come from these: of a rank's part of them as much from each of the others. */
static void test_experts_that_stay_take_no_room(void **state) {
    struct clime_model m = {.cfg = QWEN3_30B_A3B};
    struct clime_ring ring;
    (void)state;
    clime_layout_make(&m.cfg, CLIME_BF16, &m.layout);
    m.ring = &ring;
    const int64_t layer = clime_train_stage(&m.layout, 1) - clime_train_stage(&m.layout, 2);
    const int64_t experts = (int64_t)m.cfg.router.E * 3 * m.cfg.D * m.cfg.F_expert;
    for (int world = 2; world <= 8; world *= 2)
        for (int over = 2; over <= world; over *= 2) {
            struct clime_parts parts;
            struct clime_plan plan = {0};
            struct clime_between b = {0};
            clime_parts_make(&parts, &m.layout, NORM_BLOCK, (struct clime_part){1, world, .experts = over});
            clime_between_plan(&b, &m, &parts, &plan);
            const int64_t come = layer - experts + experts * (world - over) / over / world;
            const size_t most = (size_t)come * sizeof(float) * 11 / 8 + (1 << 20), least = (size_t)1 << 29;
            assert_in_range(clime_plan_bytes(&plan), 1, most > least ? most : least);
            clime_between_free(&b);
            clime_parts_free(&parts);
        }
    clime_layout_free(&m.layout);
}

/* ---- what goes where ---- */

enum { RANKS = 4, MOST_MOVES = 4096 };

static struct { /* of all exchanges, by rank */
    struct clime_move sends[RANKS][MOST_MOVES], receives[RANKS][MOST_MOVES];
    int n_sends[RANKS], n_receives[RANKS];
} moves;

static void append(struct clime_move *to, int *n_to, const struct clime_move *from, int n) {
    assert_in_range(*n_to + n, 0, MOST_MOVES);
    for (int i = 0; i < n; i++) to[(*n_to)++] = from[i];
}

static enum clime_err remember(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                               int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                               struct clime_error *e) {
    (void)what, (void)e;
    assert_true(put);
    append(moves.sends[l->rank], &moves.n_sends[l->rank], sends, n_sends);
    append(moves.receives[l->rank], &moves.n_receives[l->rank], receives, n_receives);
    *number = 0;
    return CLIME_OK;
}

static void no_end(struct clime_links *l, uint32_t number) {
    (void)l, (void)number;
}

static int64_t summed; /* elements */

static void count_sum(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                      float *y, size_t y_step) {
    (void)d, (void)x, (void)y;
    assert_in_range(n_x, 1, RANKS);
    for (int i = 0; i < n_x && rows > 1; i++) assert_true(x_step[i] >= n && y_step >= n);
    summed += rows * (int64_t)n;
}

static const struct clime_move *next_of(const struct clime_move *moves_of, int n, int rank, int *i) {
    while (*i < n && moves_of[*i].rank != rank) ++*i;
    return *i < n ? &moves_of[(*i)++] : NULL;
}

/* All exchanges of a round, as a rank sees them. As if all ranks had their places at one address. */
static void walk(const struct clime_config *c, struct clime_part who, int n_ranks) {
    static float places[1];
    static const struct clime_ops ops = {.links_begin = remember, .links_end = no_end, .accumulate = count_sum};
    struct clime_ring ring = {.who = who};
    struct clime_model m = {.cfg = *c, .ops = &ops, .ring = &ring};
    struct clime_train train = {.m = &m};
    struct clime_links links = {.ops = &ops, .rank = who.rank, .world = who.world};
    struct clime_between b = {.train = &train, .from = places, .sum = places};
    struct clime_parts parts;
    struct clime_plan plan = {0};
    clime_layout_make(c, CLIME_BF16, &m.layout);
    clime_parts_make(&parts, &m.layout, NORM_BLOCK, who);
    clime_between_plan(&b, &m, &parts, &plan);
    b.received = places;
    assert_int_equal(clime_between_link(&b, &links, NULL), CLIME_OK);
    summed = 0;
    clime_between_begin(&b, n_ranks);
    clime_between_go_on(&b, 0);
    assert_int_equal(clime_between_end(&b, NULL), CLIME_OK);
    assert_int_equal(summed, parts.own);
    clime_between_free(&b);
    clime_parts_free(&parts);
    clime_layout_free(&m.layout);
}

/* Whatever a rank puts on another goes where that one receives it, also where experts stay and some ranks give nothing:
 * all think of the same places. */
static void test_puts_meet(void **state) {
    struct clime_config c = QWEN3_30B_A3B;
    (void)state;
    c.L = 3;
    c.D = 64;
    c.F_expert = 40;
    c.V = 1000;
    c.router = (struct clime_router){.E = 8, .k = 2, .n_groups = 1, .k_groups = 1};
    for (int experts = 0; experts <= RANKS; experts += 2)
        for (int n_ranks = 1; n_ranks <= RANKS; n_ranks++) {
            memset(&moves, 0, sizeof moves);
            for (int r = 0; r < RANKS; r++) walk(&c, (struct clime_part){r, RANKS, .experts = experts}, n_ranks);
            assert_true(moves.n_sends[0] > 0);
            for (int from = 0; from < RANKS; from++)
                for (int to = 0; to < RANKS; to++) {
                    int at = 0, there = 0;
                    const struct clime_move *s, *g;
                    do {
                        s = next_of(moves.sends[from], moves.n_sends[from], to, &at);
                        g = next_of(moves.receives[to], moves.n_receives[to], from, &there);
                        assert_int_equal(!s, !g);
                        if (s) assert_ptr_equal(s->to, g->at);
                        if (s) assert_int_equal(s->bytes, g->bytes);
                    } while (s);
                }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_layer_has_places),
                                       cmocka_unit_test(test_experts_that_stay_take_no_room),
                                       cmocka_unit_test(test_puts_meet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
