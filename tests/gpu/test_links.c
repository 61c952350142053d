/* Links between GPUs, each way: every byte arrives, what was sent may be written over by what is queued after, and a
 * rank that is killed or stopped ends the wait with its name. Then the rate. Two ranks, or as many as the argument
 * says, on as many GPUs as there are; where ranks share one NCCL is left out, which takes a GPU once, and the rate, as
 * a rank that waits keeps the others from the GPU for its slice of time. A second argument: only what has that in its
 * name.
 *
 * CUDA does not live through fork, so this process never opens a GPU: every case is a family of its own. */
#include <math.h>

#include "tests/gpu/link_ranks.h"
#include "tests/unit/exchanges.h"

enum { PIECE = 32 << 20, MOST = 2 * PIECE + 12345, TURNS = 8 };
#define BIG ((size_t)1 << 30)

static void fill(uint8_t *at, size_t n, int from, int to, int round) {
    for (size_t i = 0; i < n; i++) at[i] = (uint8_t)(i * 31 + i / 251 * 7 + (size_t)(from * 67 + to * 13 + round * 5));
}

static bool holds(const struct rank *r, const void *at, size_t n, int from, int to, int round) {
    uint8_t *got = xmalloc(n + 1), *want = xmalloc(n + 1);
    r->ops->copy_out(r->dev, got, at, n);
    fill(want, n, from, to, round);
    bool same = memcmp(got, want, n) == 0;
    free(got);
    free(want);
    return same;
}

static void put(const struct rank *r, void *at, size_t n, int from, int to, int round) {
    uint8_t *h = xmalloc(n + 1);
    fill(h, n, from, to, round);
    r->ops->copy_in(r->dev, at, h, n);
    free(h);
}

/* Of round's parts: odd sizes, none at all, more than the places hold. */
static void sizes(int world, int round, size_t *from) {
    static const size_t some[] = {5000, 1, MOST, 0, PIECE, 77777};
    from[0] = 0;
    for (int r = 0; r < world; r++) from[r + 1] = from[r] + some[(size_t)(round + r) % CLIME_COUNT(some)];
}

static int collectives(const struct clime_place *p, void *work) {
    struct rank r;
    struct clime_error e;
    size_t from[CLIME_GROUP_MAX + 1];
    int me = p->rank, world = p->world;
    void *buf, *got;
    if (open_rank(p, work, &r)) return 1;
    if (me == 0) printf("  by %s\n", r.links->way);
    CHECK_RC(r.ops->alloc(r.dev, (size_t)world * MOST, "test", &buf, &e));
    CHECK_RC(r.ops->alloc(r.dev, (size_t)world * MOST, "test", &got, &e));
    for (int round = 0; round < 6; round++) {
        sizes(world, round, from);
        size_t part = from[me + 1] - from[me];
        char *own = (char *)buf + from[me];
        put(&r, own, part, me, 0, round);
        CHECK_RC(clime_links_all_gather(r.links, "gathering", buf, from, &e));
        r.ops->zero(r.dev, own, part); /* queued after it */
        for (int q = 0; q < world; q++)
            if (q != me && !holds(&r, (char *)buf + from[q], from[q + 1] - from[q], q, 0, round)) return 3;
        for (int q = 0; q < world; q++) put(&r, (char *)buf + from[q], from[q + 1] - from[q], me, q, round);
        CHECK_RC(all_to_all(r.links, "exchanging", buf, from, got, &e));
        for (int q = 0; q < world; q++)
            if (q != me && !holds(&r, (char *)got + (size_t)q * part, part, q, me, round)) return 5;
        int root = round % world;
        if (me == root) put(&r, buf, from[world], root, 9, round);
        CHECK_RC(spread(r.links, "spreading", root, buf, from[world], &e));
        if (!holds(&r, buf, from[world], root, 9, round)) return 7;
    }
    /* far ahead of the stream: each round adds what the last has brought */
    put(&r, buf, 4096, me, 0, 0);
    for (int turn = 0; turn < 300; turn++) {
        struct clime_move send = {(me + 1) % world, turn % 2 ? got : buf, 4096};
        struct clime_move receive = {(me + world - 1) % world, turn % 2 ? buf : got, 4096};
        CHECK_RC(clime_links_exchange(r.links, "going round", &send, 1, &receive, 1, &e));
    }
    if (!holds(&r, buf, 4096, ((me - 300) % world + world) % world, 0, 0)) return 8;
    /* beside what is queued: from what comes before a begin, and until the last one's end */
    enum { AT_ONCE = 5, MANY = 300 };
    uint32_t number = 0;
    for (int i = 0; i < AT_ONCE; i++) {
        char *own = (char *)buf + (size_t)i * PIECE / 4, *to = (char *)got + (size_t)i * PIECE / 4;
        struct clime_move send = {(me + 1) % world, own, PIECE / 4 - 64 * (size_t)i};
        struct clime_move receive = {(me + world - 1) % world, to, send.bytes};
        put(&r, own, send.bytes, me, 7, i);
        CHECK_RC(clime_links_begin(r.links, "going beside", &send, 1, &receive, 1, &number, &e));
    }
    clime_links_end(r.links, number);
    r.ops->zero(r.dev, buf, MOST);
    for (int i = 0; i < AT_ONCE; i++)
        if (!holds(&r, (char *)got + (size_t)i * PIECE / 4, PIECE / 4 - 64 * (size_t)i, (me + world - 1) % world, 7, i))
            return 9;
    /* more than can be queued, none of them awaited before the last */
    for (int i = 0; i < MANY; i++) {
        struct clime_move send = {(me + 1) % world, (char *)buf + i * 4096, 4096};
        struct clime_move receive = {(me + world - 1) % world, (char *)got + i * 4096, 4096};
        put(&r, send.at, 4096, me, 8, i);
        CHECK_RC(clime_links_begin(r.links, "going beside", &send, 1, &receive, 1, &number, &e));
    }
    clime_links_end(r.links, number);
    for (int i = 0; i < MANY; i++)
        if (!holds(&r, (char *)got + i * 4096, 4096, (me + world - 1) % world, 8, i)) return 10;
    CHECK_RC(r.ops->sync(r.dev, &e));
    r.ops->free(r.dev, buf);
    r.ops->free(r.dev, got);
    close_rank(&r);
    return 0;
}

/* Every rank's part of buf to all others' windows, as an all-gather does. */
static enum clime_err put_parts(struct clime_links *l, char *buf, const size_t *from, uint32_t *number,
                                struct clime_error *e) {
    struct clime_move sends[2 * CLIME_GROUP_MAX], receives[2 * CLIME_GROUP_MAX];
    int n = 0;
    for (int k = 1; k < l->world; k++) {
        const int q = (l->rank + k) % l->world;
        for (int half = 0; half < 2; half++, n++) { /* two moves for a rank, cut at an odd place */
            const size_t own = from[l->rank + 1] - from[l->rank], theirs = from[q + 1] - from[q];
            char *mine = buf + from[l->rank] + (half ? own / 3 : 0), *to = buf + from[q] + (half ? theirs / 3 : 0);
            sends[n] = (struct clime_move){q, mine, half ? own - own / 3 : own / 3, mine};
            receives[n] = (struct clime_move){.rank = q, .at = to, .bytes = half ? theirs - theirs / 3 : theirs / 3};
        }
    }
    return clime_links_put(l, "putting", sends, n, receives, n, number, e);
}

/* A window that begins elsewhere in its allocation on every rank. */
static int open_window(const struct clime_place *p, struct rank *r, size_t bytes, char **out) {
    struct clime_error e;
    char *all;
    CHECK_RC(r->ops->alloc_shared(r->dev, bytes + 4096 * (size_t)p->world, "test", (void **)&all, &e));
    *out = all + 4096 * (size_t)p->rank;
    CHECK_RC(clime_links_window(r->links, *out, bytes, &e));
    return 0;
}

/* Row i of two kinds by turns, long and short ones, each kind at even distances: here it lies one behind the other at
 * `from`, and goes to where the next rank has `to`. */
static struct clime_move row_of(int i, char *from, char *to, int rank) {
    const size_t pair = (size_t)(i / 2), bytes = i % 2 ? 512 : 3072;
    return (struct clime_move){rank, from + pair * 3584 + (i % 2 ? 3072 : 0), bytes,
                               to + pair * (i % 2 ? 768 : 8192) + (i % 2 ? 1 << 20 : 0)};
}

static int put_rows(const struct clime_place *p, const struct rank *r, char *buf) {
    const int me = p->rank, world = p->world;
    enum { ROWS = 101 };
    struct clime_move sends[ROWS], receives[ROWS];
    struct clime_error e;
    uint32_t number;
    r->ops->zero(r->dev, buf, 2 << 20);
    for (int i = 0; i < ROWS; i++) {
        sends[i] = row_of(i, buf + (2 << 20), buf, (me + 1) % world);
        put(r, sends[i].at, sends[i].bytes, me, 6, i);
        receives[i] = (struct clime_move){(me + world - 1) % world, sends[i].to, sends[i].bytes};
    }
    CHECK_RC(clime_links_put(r->links, "putting rows", sends, ROWS, receives, ROWS, &number, &e));
    clime_links_end(r->links, number);
    for (int i = 0; i < ROWS; i++)
        if (!holds(r, receives[i].at, receives[i].bytes, (me + world - 1) % world, 6, i)) return 6;
    return 0;
}

static int windows(const struct clime_place *p, void *work) {
    enum { ROUNDS = 6, MANY = 300, EACH = 4096 };
    struct rank r;
    struct clime_error e;
    size_t from[CLIME_GROUP_MAX + 1];
    char *first, *buf;
    uint32_t number = 0;
    int me = p->rank, world = p->world;
    if (open_rank(p, work, &r) || open_window(p, &r, 12345, &first) || open_window(p, &r, (size_t)world * MOST, &buf))
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        sizes(world, round, from);
        r.ops->zero(r.dev, buf, from[world]);
        put(&r, buf + from[me], from[me + 1] - from[me], me, 0, round);
        CHECK_RC(put_parts(r.links, buf, from, &number, &e));
        CHECK_RC(clime_links_all_gather(r.links, "between", first, (size_t[CLIME_GROUP_MAX + 1]){0}, &e));
        clime_links_end(r.links, number);
        r.ops->zero(r.dev, buf + from[me], from[me + 1] - from[me]); /* queued after it */
        for (int q = 0; q < world; q++)
            if (q != me && !holds(&r, buf + from[q], from[q + 1] - from[q], q, 0, round)) return 3;
    }
    /* none awaited before the last; then what each of them brought is sent on at once, by either way */
    for (int i = 0; i < MANY; i++) {
        char *own = buf + (size_t)(2 * i) * EACH, *to = own + EACH;
        put(&r, own, EACH, me, 8, i);
        struct clime_move send = {(me + 1) % world, own, EACH, to},
                          receive = {.rank = (me + world - 1) % world, .at = to, .bytes = EACH};
        CHECK_RC(clime_links_put(r.links, "going round", &send, 1, &receive, 1, &number, &e));
    }
    clime_links_end(r.links, number);
    for (int i = 0; i < MANY; i++) {
        char *at = buf + (size_t)(2 * i) * EACH, *to = at + EACH;
        struct clime_move send = {(me + 1) % world, to, EACH, at},
                          receive = {.rank = (me + world - 1) % world, .at = at, .bytes = EACH};
        if (i % 3)
            CHECK_RC(clime_links_put(r.links, "going on", &send, 1, &receive, 1, &number, &e));
        else
            CHECK_RC(clime_links_begin(r.links, "going on", &send, 1, &receive, 1, &number, &e));
        clime_links_end(r.links, number);
    }
    for (int i = 0; i < MANY; i++)
        if (!holds(&r, buf + (size_t)(2 * i) * EACH, EACH, (me + 2 * world - 2) % world, 8, i)) return 4;
    const int rc = put_rows(p, &r, buf);
    close_rank(&r);
    return rc;
}

/* Seconds of a turn of an exchange with the next rank and the last. */
static double turn_of(const struct rank *r, struct clime_move *send, int n_sends, struct clime_move *receive,
                      int n_receives) {
    struct clime_error e;
    int64_t t0 = 0;
    for (int turn = 0; turn <= TURNS; turn++) {
        if (turn == 1 && r->ops->sync(r->dev, &e)) return NAN;
        if (turn == 1) t0 = clime_now_us();
        if (clime_links_exchange(r->links, "measuring", send, n_sends, receive, n_receives, &e)) return NAN;
    }
    if (r->ops->sync(r->dev, &e)) return NAN;
    return (double)(clime_now_us() - t0) / 1e6 / TURNS;
}

static int rate(const struct clime_place *p, void *work) {
    static const size_t bytes[] = {BIG, (size_t)64 << 20, 1 << 20, 4096};
    struct rank r;
    struct clime_error e;
    int me = p->rank, world = p->world;
    void *buf, *got;
    if (open_rank(p, work, &r)) return 1;
    CHECK_RC(r.ops->alloc(r.dev, BIG, "test", &buf, &e));
    CHECK_RC(r.ops->alloc(r.dev, BIG, "test", &got, &e));
    r.ops->zero(r.dev, buf, BIG);
    for (size_t i = 0; i < CLIME_COUNT(bytes); i++) {
        struct clime_move send = {(me + 1) % world, buf, bytes[i]}, receive = {(me + world - 1) % world, got, bytes[i]};
        double both = turn_of(&r, &send, 1, &receive, 1);
        double one = me == 0 ? turn_of(&r, &send, 1, NULL, 0) : me == 1 ? turn_of(&r, NULL, 0, &receive, 1) : 0;
        if (me == 0)
            printf("  %10zu bytes: one way %8.1f us, %6.1f GB/s; each to the next at once %8.1f us, %6.1f GB/s\n",
                   bytes[i], one * 1e6, (double)bytes[i] / one / 1e9, both * 1e6, (double)bytes[i] / both / 1e9);
    }
    close_rank(&r);
    return 0;
}

/* ---- rows ---- */

struct rows { /* a gather */
    int T, root;
    size_t at[CLIME_GROUP_MAX + 1], bytes;
    uint8_t *parts, *y;
};

/* Of round's shape, cut in thirds of `cut`; buffers for it. */
static void make_rows(const struct rank *r, int world, int T, size_t most, size_t cut, int root, struct rows *w) {
    struct clime_error e;
    *w = (struct rows){.T = T, .root = root};
    for (int q = 0; q < world; q++) w->at[q + 1] = w->at[q] + (q % 3 == 0 ? most : q % 3 == 1 ? most - cut : cut);
    w->bytes = (size_t)T * w->at[world];
    if (r->ops->alloc(r->dev, w->bytes, "test", (void **)&w->parts, &e) ||
        r->ops->alloc(r->dev, w->bytes, "test", (void **)&w->y, &e))
        abort();
}

static void put_own(const struct rank *r, const struct rows *w, int me, int round) {
    size_t width = w->at[me + 1] - w->at[me];
    put(r, w->parts + (size_t)w->T * w->at[me], (size_t)w->T * width, me, 0, round);
    r->ops->zero(r->dev, w->y, w->bytes);
}

static bool rows_hold(const struct rank *r, const struct rows *w, int world, int round) {
    uint8_t *got = xmalloc(w->bytes), *part = xmalloc(w->bytes);
    bool same = true;
    r->ops->copy_out(r->dev, got, w->y, w->bytes);
    for (int q = 0; q < world; q++) {
        size_t width = w->at[q + 1] - w->at[q];
        fill(part, (size_t)w->T * width, q, 0, round);
        for (int t = 0; t < w->T; t++)
            same = same && memcmp(got + (size_t)t * w->at[world] + w->at[q], part + (size_t)t * width, width) == 0;
    }
    free(got);
    free(part);
    return same;
}

static int gather_rows(const struct rank *r, const struct rows *w, struct clime_error *e) {
    return clime_links_gather_rows(r->links, "gathering rows", w->root, w->T, 1, w->at, w->parts, w->y, e);
}

/* Queued, and recorded together and replayed: columns of eight bytes and of two, some that are nobody's, more than the
 * places hold, to all and to one. More than a recording takes go as exchanges. */
static int rows(const struct clime_place *p, void *work) {
    static const struct {
        int T;
        size_t most, cut;
        int root;
    } some[] = {{1, 8, 0, -1},       {1, 2560, 640, -1}, {3, 10, 4, -1},    {64, 12800, 1600, -1}, {7, 6, 6, 0},
                {256, 25600, 8, -1}, {64, 303872, 0, 0}, {17, 2222, 22, 0}, {300, 4096, 64, -1}};
    enum { N = CLIME_COUNT(some), RECORDED = N - 1, TURNS_OF_IT = 5 };
    struct rows w[N];
    struct rank r;
    struct clime_error e;
    struct clime_graph *graph = NULL;
    int me = p->rank, world = p->world;
    if (open_rank(p, work, &r)) return 1;
    for (int i = 0; i < N; i++) make_rows(&r, world, some[i].T, some[i].most, some[i].cut, some[i].root, &w[i]);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < N; i++) {
            put_own(&r, &w[i], me, round + i);
            CHECK_RC(gather_rows(&r, &w[i], &e));
            if ((w[i].root < 0 || w[i].root == me) && !rows_hold(&r, &w[i], world, round + i)) {
                printf("FAILED: rank %d: other bytes, gather %d, round %d\n", me, i, round);
                return 2;
            }
        }
    printf("  rank %d: queued, the bytes are there; recorded: %d\n", me, r.links->records);
    if (r.links->records) r.ops->graph_begin(r.dev);
    for (int i = 0; i < RECORDED && r.links->records; i++) CHECK_RC(gather_rows(&r, &w[i], &e));
    if (r.links->records) CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
    for (int turn = 0; turn < TURNS_OF_IT && graph; turn++) {
        for (int i = 0; i < RECORDED; i++) put_own(&r, &w[i], me, turn * 3 + i);
        r.ops->graph_launch(r.dev, graph);
        for (int i = 0; i < RECORDED; i++)
            if ((w[i].root < 0 || w[i].root == me) && !rows_hold(&r, &w[i], world, turn * 3 + i)) {
                printf("FAILED: rank %d: other bytes, gather %d of replay %d\n", me, i, turn);
                return 3;
            }
    }
    for (int turn = 0; turn < 200 && graph; turn++) r.ops->graph_launch(r.dev, graph); /* far ahead of the device */
    CHECK_RC(r.ops->sync(r.dev, &e));
    if (graph) r.ops->graph_free(r.dev, graph);
    close_rank(&r);
    return 0;
}

/* What a gather costs, recorded: one behind the other, as in a decode step of rows this wide. */
static int rows_rate(const struct clime_place *p, void *work) {
    static const size_t bytes[] = {8 << 10, 10 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
    enum { EACH = 64, REPLAYS = 50 };
    struct rank r;
    struct clime_error e;
    if (open_rank(p, work, &r)) return 1;
    for (size_t i = 0; i < CLIME_COUNT(bytes) && r.links->records; i++) {
        struct rows w;
        struct clime_graph *graph;
        make_rows(&r, p->world, 1, bytes[i] / (size_t)p->world, 0, -1, &w);
        for (int q = 0; q <= p->world; q++) w.at[q] = bytes[i] / (size_t)p->world * (size_t)q;
        CHECK_RC(gather_rows(&r, &w, &e));
        r.ops->graph_begin(r.dev);
        for (int k = 0; k < EACH; k++) CHECK_RC(gather_rows(&r, &w, &e));
        CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
        r.ops->graph_launch(r.dev, graph);
        CHECK_RC(r.ops->sync(r.dev, &e));
        CHECK_RC(clime_group_agree(r.group, "ready", &e));
        int64_t t0 = clime_now_us();
        for (int k = 0; k < REPLAYS; k++) r.ops->graph_launch(r.dev, graph);
        CHECK_RC(r.ops->sync(r.dev, &e));
        double us = (double)(clime_now_us() - t0) / EACH / REPLAYS;
        if (p->rank == 0) printf("  %8zu bytes of all ranks: %6.2f us\n", bytes[i], us);
        r.ops->graph_free(r.dev, graph);
    }
    close_rank(&r);
    return 0;
}

/* As below, in recorded gathers. */
static int rows_without(const struct clime_place *p, void *work) {
    const struct work *w = work;
    struct rank r;
    struct rows some;
    struct clime_error e = {0};
    struct clime_graph *graph;
    char name[32];
    if (open_rank(p, w, &r)) return 1;
    if (!r.links->records) return 0;
    make_rows(&r, p->world, 64, 2560, 0, -1, &some);
    CHECK_RC(gather_rows(&r, &some, &e));
    r.ops->graph_begin(r.dev);
    for (int k = 0; k < 100; k++) CHECK_RC(gather_rows(&r, &some, &e));
    CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
    CHECK_RC(r.ops->sync(r.dev, &e));
    CHECK_RC(clime_group_agree(r.group, "here", &e));
    if (w->frozen) clime_group_set_limit(r.group, SHORT_US, NULL);
    if (p->rank == p->world - 1) raise(w->frozen ? SIGSTOP : SIGKILL);
    int64_t t0 = clime_now_us();
    for (int k = 0; k < 3; k++) r.ops->graph_launch(r.dev, graph);
    enum clime_err rc = r.ops->sync(r.dev, &e);
    double took = (double)(clime_now_us() - t0) / 1e6;
    snprintf(name, sizeof name, "rank %d of %d", p->world - 1, p->world);
    if (rc && p->rank) clime_group_fail(r.group, &e);
    if (p->rank == 0) printf("  after %.2f s: %s\n", took, rc ? e.msg : "no error");
    r.ops->graph_free(r.dev, graph);
    close_rank(&r);
    if (p->rank == 0) printf("  closed after %.2f s\n", (double)(clime_now_us() - t0) / 1e6);
    if (!rc || (p->rank == 0 && rc != (w->frozen ? CLIME_ERR_TIMEOUT : CLIME_ERR_UNAVAILABLE))) return 2;
    return p->rank || strstr(e.msg, name) ? 0 : 3;
}

/* The last rank ends or stops instead of taking part; what the others say of it. */
static int without(const struct clime_place *p, void *work) {
    const struct work *w = work;
    struct rank r;
    struct clime_error e = {0};
    size_t from[CLIME_GROUP_MAX + 1];
    char name[32];
    char *buf;
    uint32_t number;
    if (open_rank(p, w, &r) || open_window(p, &r, (size_t)p->world * PIECE * 3, &buf)) return 1;
    for (int i = 0; i <= p->world; i++) from[i] = (size_t)i * PIECE * 3;   /* more than the places hold */
    CHECK_RC(clime_links_all_gather(r.links, "gathering", buf, from, &e)); /* all is open and connected */
    CHECK_RC(r.ops->sync(r.dev, &e));
    CHECK_RC(clime_group_agree(r.group, "here", &e));
    if (w->frozen) clime_group_set_limit(r.group, SHORT_US, NULL);
    if (p->rank == p->world - 1) raise(w->frozen ? SIGSTOP : SIGKILL);
    int64_t t0 = clime_now_us();
    enum clime_err rc = w->puts ? put_parts(r.links, buf, from, &number, &e)
                                : clime_links_all_gather(r.links, "gathering", buf, from, &e);
    if (!rc && w->puts) clime_links_end(r.links, number);
    if (!rc) rc = r.ops->sync(r.dev, &e);
    double took = (double)(clime_now_us() - t0) / 1e6;
    snprintf(name, sizeof name, "rank %d of %d", p->world - 1, p->world);
    if (rc && p->rank) clime_group_fail(r.group, &e);
    if (p->rank == 0) printf("  after %.2f s: %s\n", took, rc ? e.msg : "no error");
    close_rank(&r);
    if (p->rank == 0) printf("  closed after %.2f s\n", (double)(clime_now_us() - t0) / 1e6);
    /* another rank may have heard it from rank 0 first */
    if (!rc || (p->rank == 0 && rc != (w->frozen ? CLIME_ERR_TIMEOUT : CLIME_ERR_UNAVAILABLE))) return 2;
    return strstr(e.msg, w->puts ? "putting" : "gathering") && (p->rank || strstr(e.msg, name)) ? 0 : 3;
}

int main(int argc, char **argv) {
    const char *only = argc > 2 ? argv[2] : "";
    static const char *const ways[] = {"auto", "mapped", "nccl"};
    int world = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2, n_gpus = count_gpus(world), failed = 0;
    if (!n_gpus) return 77;
    printf("%d ranks on %d GPUs\n", world, n_gpus);
    for (enum clime_links_way way = CLIME_LINKS_MAPPED; way <= CLIME_LINKS_NCCL; way++) {
        char name[64];
        if (way == CLIME_LINKS_NCCL && n_gpus < world) continue;
        struct work all[] = {{way, n_gpus, collectives, false, false}, {way, n_gpus, rate, false, false},
                             {way, n_gpus, without, true, false},      {way, n_gpus, without, true, true},
                             {way, n_gpus, rows, false, false},        {way, n_gpus, rows_rate, false, false},
                             {way, n_gpus, rows_without, true, false}, {way, n_gpus, rows_without, true, true},
                             {way, n_gpus, windows, false, false},     {way, n_gpus, without, true, false, true},
                             {way, n_gpus, without, true, true, true}};
        const char *const what[] = {"collectives",
                                    "rate",
                                    "a killed rank",
                                    "a frozen rank",
                                    "rows",
                                    "rate of rows",
                                    "rows, a killed rank",
                                    "rows, a frozen rank",
                                    "windows",
                                    "windows, a killed rank",
                                    "windows, a frozen rank"};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) {
            snprintf(name, sizeof name, "%s: %s", ways[way], what[i]);
            if (n_gpus < world && strstr(name, "rate")) continue;
            if (strstr(name, only)) failed += family(name, world, &all[i]) != 0;
        }
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
