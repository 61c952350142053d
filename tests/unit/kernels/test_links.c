/* Bytes between CPU ranks: every one arrives once, in order, at every size; nobody waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/rng.h"
#include "kernels/links.h"
#include "tests/unit/exchanges.h"
#include "tests/unit/ranks.h"

struct rank {
    struct clime_dev *dev;
    struct clime_group *group;
    struct clime_links *links;
};

static bool open_rank(const struct clime_place *p, int64_t limit_us, struct rank *r) {
    const struct clime_group_options o = ranks_options(p, limit_us);
    const struct clime_dev_options dev = {.dt = CLIME_F32, .n_threads = 1};
    struct clime_error e;
    if (clime_group_meet(&o, &r->group, &e) || clime_cpu_ops.open(&dev, &r->dev, &e) ||
        clime_links_open(&clime_cpu_ops, r->dev, r->group, &r->links, &e)) {
        fprintf(stderr, "rank %d: %s\n", p->rank, e.msg);
        return false;
    }
    return true;
}

static void close_rank(struct rank *r) {
    clime_links_close(r->links);
    clime_group_close(r->group);
    clime_cpu_ops.close(r->dev);
}

/* Byte i of what rank `from` has for rank `to` in round `round`. */
static uint8_t byte_of(int from, int to, int round, size_t i) {
    return (uint8_t)(i * 31 + i / 251 * 7 + (size_t)(from * 67 + to * 13 + round * 5));
}

static void fill(uint8_t *at, size_t n, int from, int to, int round) {
    for (size_t i = 0; i < n; i++) at[i] = byte_of(from, to, round, i);
}

static bool holds(const uint8_t *at, size_t n, int from, int to, int round) {
    for (size_t i = 0; i < n; i++)
        if (at[i] != byte_of(from, to, round, i)) return false;
    return true;
}

enum { ROUNDS = 12, MOST = 3 << 20 }; /* three rings full */

/* Sizes of a round that all ranks know: nothing, a byte, odd ones, many times a ring. */
static void sizes(int world, int round, size_t *from) {
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)round);
    from[0] = 0;
    for (int r = 0; r < world; r++) {
        uint64_t cap = clime_rng_below(&rng, 4) ? 5000 : MOST;
        from[r + 1] = from[r] + clime_rng_below(&rng, cap);
    }
    if (round == 0) memset(from, 0, ((size_t)world + 1) * sizeof *from);
}

static int collectives(const struct clime_place *p, void *arg) {
    struct rank r;
    struct clime_error e;
    size_t from[CLIME_GROUP_MAX + 1];
    int me = p->rank, world = p->world;
    (void)arg;
    if (!open_rank(p, RANKS_LONG_US, &r)) return 1;
    uint8_t *buf = xmalloc((size_t)world * MOST), *got = xmalloc((size_t)world * MOST);
    for (int round = 0; round < ROUNDS; round++) {
        sizes(world, round, from);
        size_t part = from[me + 1] - from[me];
        fill(buf + from[me], part, me, 0, round);
        if (clime_links_all_gather(r.links, "gathering", buf, from, &e)) return 2;
        for (int q = 0; q < world; q++)
            if (!holds(buf + from[q], from[q + 1] - from[q], q, 0, round)) return 3;
        for (int q = 0; q < world; q++) fill(buf + from[q], from[q + 1] - from[q], me, q, round);
        if (all_to_all(r.links, "exchanging", buf, from, got, &e)) return 4;
        for (int q = 0; q < world; q++)
            if (q != me && !holds(got + (size_t)q * part, part, q, me, round)) return 5;
        int root = round % world;
        if (me == root) fill(buf, from[world], root, 9, round);
        if (spread(r.links, "spreading", root, buf, from[world], &e)) return 6;
        if (!holds(buf, from[world], root, 9, round)) return 7;
    }
    free(buf);
    free(got);
    close_rank(&r);
    return 0;
}

/* Columns of all ranks, some of which have none, become rows on all or on one, also where they lie already. */
static int rows(const struct clime_place *p, void *arg) {
    enum { T = 7, WIDEST = 600 };
    struct rank r;
    struct clime_error e;
    size_t at[CLIME_GROUP_MAX + 1] = {0};
    int me = p->rank, world = p->world;
    (void)arg;
    if (!open_rank(p, RANKS_LONG_US, &r)) return 1;
    uint8_t *parts = xcalloc((size_t)(world * T), WIDEST), *y = xcalloc((size_t)(world * T), WIDEST);
    for (int round = 0; round < ROUNDS; round++) {
        int root = round % (world + 1) - 1;
        for (int q = 0; q < world; q++) at[q + 1] = at[q] + (size_t)(round * 53 + q * 31) % 5 * 120;
        size_t width = at[me + 1] - at[me];
        fill(parts + T * at[me], T * width, me, 0, round);
        memset(y, 0, T * at[world]);
        if (clime_links_gather_rows(r.links, "gathering", root, T, 1, at, parts, y, &e)) return 2;
        for (int q = 0; q < world && (root < 0 || root == me); q++)
            for (size_t t = 0; t < T; t++)
                for (size_t i = 0, n = at[q + 1] - at[q]; i < n; i++)
                    if (y[t * at[world] + at[q] + i] != byte_of(q, 0, round, t * n + i)) return 3;
    }
    for (int q = 1; q <= world; q++) at[q] = WIDEST; /* one row that is all rank 0's */
    if (me == 0) fill(y, at[1], 0, 7, 0);
    if (clime_links_gather_rows(r.links, "handing out", -1, 1, 1, at, y, y, &e) || !holds(y, at[1], 0, 7, 0)) return 4;
    free(parts);
    free(y);
    close_rank(&r);
    return 0;
}

static void test_columns_become_rows(void **state) {
    (void)state;
    for (int world = 2; world <= 3; world++) {
        struct ranks r;
        ranks_fork(&r, world, rows, NULL);
        assert_int_equal(rows(&r.place, NULL), 0);
        for (int i = 1; i < world; i++) assert_int_equal(ranks_end(&r, i), 0);
    }
}

static void test_every_byte_arrives(void **state) {
    (void)state;
    for (int world = 2; world <= 4; world++) {
        struct ranks r;
        ranks_fork(&r, world, collectives, NULL);
        assert_int_equal(collectives(&r.place, NULL), 0);
        for (int i = 1; i < world; i++) assert_int_equal(ranks_end(&r, i), 0);
    }
}

/* Several moves between two ranks, both ways, in one exchange: each into its own place, in order. */
static int in_order(const struct clime_place *p, void *arg) {
    enum { N = 5 };
    const size_t bytes[N] = {3, 2 << 20, 0, 1, 100000};
    struct clime_move sends[N], receives[N];
    struct rank r;
    struct clime_error e;
    int me = p->rank;
    (void)arg;
    if (!open_rank(p, RANKS_LONG_US, &r)) return 1;
    for (int i = 0; i < N; i++) {
        sends[i] = (struct clime_move){!me, xmalloc(bytes[i] + 1), bytes[i]};
        receives[i] = (struct clime_move){!me, xmalloc(bytes[i] + 1), bytes[i]};
        fill(sends[i].at, bytes[i], me, !me, i);
    }
    if (clime_links_exchange(r.links, "moving", sends, N, receives, N, &e)) return 2;
    for (int i = 0; i < N; i++) {
        if (!holds(receives[i].at, bytes[i], !me, me, i)) return 3;
        free(sends[i].at);
        free(receives[i].at);
    }
    close_rank(&r);
    return 0;
}

static void test_moves_of_one_pair_keep_their_order(void **state) {
    struct ranks r;
    (void)state;
    ranks_fork(&r, 2, in_order, NULL);
    assert_int_equal(in_order(&r.place, NULL), 0);
    assert_int_equal(ranks_end(&r, 1), 0);
}

/* The last rank ends or stops instead of taking part; what the others say of it. */
static int gather_without(const struct clime_place *p, void *arg) {
    struct rank r;
    struct clime_error e = {0};
    uint8_t buf[64] = {0};
    size_t from[CLIME_GROUP_MAX + 1];
    char name[32];
    bool frozen = !strcmp(arg, "frozen");
    if (!open_rank(p, frozen ? 300000 : RANKS_LONG_US, &r)) return 1;
    for (int i = 0; i <= p->world; i++) from[i] = (size_t)i * 16;
    if (p->rank == p->world - 1) raise(frozen ? SIGSTOP : SIGKILL);
    enum clime_err rc = clime_links_all_gather(r.links, "gathering", buf, from, &e);
    snprintf(name, sizeof name, "rank %d of %d", p->world - 1, p->world);
    if (rc && p->rank) clime_group_fail(r.group, &e); /* who notices first says it to rank 0 */
    close_rank(&r);
    if (!rc) return 2;
    return strstr(e.msg, "gathering") && (p->rank || strstr(e.msg, name)) ? 0 : 3;
}

static void test_lost_and_frozen_ranks_end_the_wait(void **state) {
    const char *const ways[] = {"killed", "frozen"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ranks r;
        ranks_fork(&r, 3, gather_without, (void *)(uintptr_t)ways[i]);
        assert_int_equal(gather_without(&r.place, (void *)(uintptr_t)ways[i]), 0);
        assert_int_equal(ranks_end(&r, 1), 0);
        kill(r.pid[2], SIGKILL);
        assert_int_equal(ranks_end(&r, 2), 128 + SIGKILL);
    }
}

/* Ranks 2 and 3 exchange bytes of their own before all do, and rank 3 is frozen. One of the others comes to its limit
 * before rank 2 does, which it waits for: what rank 0 says of it, and what rank 3 finds that was said, when it goes on.
 */
static int wait_for_two(const struct clime_place *p, void *first) {
    struct rank r;
    struct clime_error e = {0};
    enum clime_err code, rc = CLIME_OK;
    uint8_t buf[64] = {0};
    const size_t from[] = {0, 16, 32, 48, 64};
    const struct clime_move receive = {3, buf, 16};
    if (!open_rank(p, RANKS_LONG_US, &r)) return 1;
    if (p->rank == *(int *)first) clime_group_set_limit(r.group, 300000, NULL);
    if (p->rank == 3) raise(SIGSTOP);
    if (p->rank == 2) rc = clime_links_exchange(r.links, "rows", NULL, 0, &receive, 1, &e);
    if (!rc) rc = clime_links_all_gather(r.links, "gathering", buf, from, &e);
    clime_group_fail(r.group, &e);
    const bool named = clime_group_lost(r.group, &code) == 3 && strstr(e.msg, "rank 3 of 4");
    const bool must = p->rank == 0 || p->rank == 3, late = p->rank || code == CLIME_ERR_TIMEOUT;
    if (must && !named) fprintf(stderr, "rank %d: %s\n", p->rank, e.msg);
    close_rank(&r);
    return rc && late && (named || !must) ? 0 : 2;
}

/* Not the rank that is waited for, where that waits for another. */
static void test_who_is_frozen_is_named(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct ranks r;
        int status;
        ranks_fork(&r, 4, wait_for_two, &first);
        assert_int_equal(wait_for_two(&r.place, &first), 0);
        for (int i = 1; i < 3; i++) assert_int_equal(ranks_end(&r, i), 0);
        assert_int_equal(waitpid(r.pid[3], &status, WUNTRACED), r.pid[3]);
        assert_true(WIFSTOPPED(status));
        assert_int_equal(kill(r.pid[3], SIGCONT), 0);
        assert_int_equal(ranks_end(&r, 3), 0);
    }
}

/* Rank 4 is frozen, rank 1 waits for it and rank 0 for rank 1, while 2 and 3 move bytes without a pause. */
static int move_meanwhile(const struct clime_place *p, void *arg) {
    enum { BYTES = 4 << 20 };
    struct rank r;
    struct clime_error e = {0};
    enum clime_err code, rc = CLIME_OK;
    uint8_t *buf = xcalloc(2, BYTES);
    const int other = p->rank == 0 ? 1 : p->rank == 1 ? 4 : 5 - p->rank;
    const bool busy = p->rank == 2 || p->rank == 3;
    const struct clime_move send = {other, buf, BYTES}, receive = {other, buf + BYTES, BYTES};
    (void)arg;
    if (!open_rank(p, RANKS_LONG_US, &r)) return 1;
    if (p->rank == 0) clime_group_set_limit(r.group, 300000, NULL);
    if (p->rank == 4) raise(SIGSTOP);
    while (!rc) rc = clime_links_exchange(r.links, "rows", &send, busy, &receive, 1, &e);
    if (p->rank == 0) clime_group_fail(r.group, &e);
    const bool named = strstr(e.msg, "rows") == e.msg && (p->rank || clime_group_lost(r.group, &code) == 4);
    if (!named) fprintf(stderr, "%s\n", e.msg);
    close_rank(&r);
    free(buf);
    return named ? 0 : 2;
}

/* Who is busy answers, too. */
static void test_who_moves_bytes_is_there(void **state) {
    struct ranks r;
    (void)state;
    ranks_fork(&r, 5, move_meanwhile, NULL);
    assert_int_equal(move_meanwhile(&r.place, NULL), 0);
    for (int i = 1; i < 4; i++) assert_int_equal(ranks_end(&r, i), 0);
    kill(r.pid[4], SIGKILL);
    assert_int_equal(ranks_end(&r, 4), 128 + SIGKILL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_byte_arrives),
                                       cmocka_unit_test(test_columns_become_rows),
                                       cmocka_unit_test(test_moves_of_one_pair_keep_their_order),
                                       cmocka_unit_test(test_lost_and_frozen_ranks_end_the_wait),
                                       cmocka_unit_test(test_who_is_frozen_is_named),
                                       cmocka_unit_test(test_who_moves_bytes_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
