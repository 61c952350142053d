/* Rows of experts that go home (kernels/cuda/links/home.cu): every rank has its columns of what all ranks have made,
 * whoever has made how much, queued and recorded, where a replay finds other numbers of rows than were recorded; and a
 * rank that is killed or stopped ends the wait with its name. Then the rate. Two ranks, or as many as the argument
 * says, on as many GPUs as there are. A second argument: only what has that in its name. */
#include "tests/gpu/link_ranks.h"

enum { EXPERTS = 4 }; /* of a rank */

enum loads { EVEN, FIRST, LAST, ONE_FOR_FIRST, LIKE_A_ROUTER, N_LOADS }; /* who has made the rows */

struct home { /* an exchange */
    int R;
    size_t row_bytes, bytes; /* of y: all rows */
    int32_t *start;
    uint8_t *rows, *y;
};

/* Where the experts' rows begin; turn moves what LIKE_A_ROUTER says. */
static void fill_starts(int world, int R, enum loads loads, int turn, int32_t *h) {
    int E = world * EXPERTS, own;
    h[0] = 0;
    for (int e = 0; e < E; e++) {
        int left = R - h[e];
        switch (loads) {
        case EVEN:
            own = (int)((int64_t)R * (e + 1) / E) - h[e];
            break;
        case FIRST:
            own = e == 0 ? R : 0;
            break;
        case LAST:
            own = e == E - 1 ? R : 0;
            break;
        case ONE_FOR_FIRST:
            own = e == EXPERTS - 1 ? 1 : e == E - 1 ? R - 1 : 0;
            break;
        default:
            own = (e + turn) % 3 == 0 ? 0 : left * ((e * 7 + turn * 5) % 11) / 13;
        }
        h[e + 1] = e == E - 1 ? R : h[e] + own;
    }
}

static uint8_t byte_of(int row, size_t column, int turn) {
    return (uint8_t)((size_t)row * 41 + (size_t)row / 256 * 3 + column * 7 + column / 256 * 5 + (size_t)turn * 19);
}

static int make_home(const struct rank *r, int world, int R, size_t row_bytes, struct home *x) {
    struct clime_error e;
    *x = (struct home){.R = R, .row_bytes = row_bytes, .bytes = (size_t)R * row_bytes};
    return r->ops->alloc(r->dev, ((size_t)world * EXPERTS + 1) * 4, "test", (void **)&x->start, &e) ||
           r->ops->alloc(r->dev, x->bytes * (size_t)world, "test", (void **)&x->rows, &e) ||
           r->ops->alloc(r->dev, x->bytes, "test", (void **)&x->y, &e);
}

static void free_home(const struct rank *r, struct home *x) {
    r->ops->free(r->dev, x->start);
    r->ops->free(r->dev, x->rows);
    r->ops->free(r->dev, x->y);
}

/* This rank's rows; those of others hold what nobody may see. */
static void put_rows(const struct rank *r, const struct home *x, const struct clime_place *p, enum loads loads,
                     int turn) {
    int32_t start[CLIME_GROUP_MAX * EXPERTS + 1];
    size_t whole = x->row_bytes * (size_t)p->world;
    uint8_t *h = xmalloc(whole * (size_t)x->R);
    fill_starts(p->world, x->R, loads, turn, start);
    memset(h, 0xee, whole * (size_t)x->R);
    for (int i = start[p->rank * EXPERTS]; i < start[(p->rank + 1) * EXPERTS]; i++)
        for (size_t c = 0; c < whole; c++) h[(size_t)i * whole + c] = byte_of(i, c, turn);
    r->ops->copy_in(r->dev, x->rows, h, whole * (size_t)x->R);
    r->ops->copy_in(r->dev, x->start, start, ((size_t)p->world * EXPERTS + 1) * sizeof *start);
    r->ops->zero(r->dev, x->y, x->bytes);
    free(h);
}

static bool came_home(const struct rank *r, const struct home *x, int rank, int turn) {
    uint8_t *got = xmalloc(x->bytes);
    bool same = true;
    r->ops->copy_out(r->dev, got, x->y, x->bytes);
    for (int i = 0; i < x->R; i++)
        for (size_t c = 0; c < x->row_bytes; c++)
            same = same && got[(size_t)i * x->row_bytes + c] == byte_of(i, (size_t)rank * x->row_bytes + c, turn);
    free(got);
    return same;
}

static void go_home(const struct rank *r, const struct home *x) {
    clime_links_home(r->links, "bringing rows home", x->R, x->row_bytes, x->start, EXPERTS, x->rows, x->y);
}

/* A row's places, several rows', more than the rings hold; columns of 16 bytes and of two. */
static int home(const struct clime_place *p, void *work) {
    static const struct {
        int R;
        size_t row_bytes;
    } some[] = {{8, 2048}, {1, 16}, {128, 2048}, {40, 26}, {2048, 2048}, {300, 1026}, {20000, 1536}};
    enum { N = CLIME_COUNT(some), REPLAYS = 10 };
    struct home x[N];
    struct rank r;
    struct clime_error e;
    struct clime_graph *graph;
    if (open_rank(p, work, &r)) return 1;
    if (!r.links->records) return 4;
    for (int i = 0; i < N; i++)
        if (make_home(&r, p->world, some[i].R, some[i].row_bytes, &x[i])) return 5;
    for (int loads = 0; loads < N_LOADS; loads++)
        for (int i = 0; i < N; i++) {
            put_rows(&r, &x[i], p, loads, i);
            go_home(&r, &x[i]);
            if (!came_home(&r, &x[i], p->rank, i)) {
                printf("FAILED: rank %d: other bytes, %d rows, loads %d\n", p->rank, x[i].R, loads);
                return 2;
            }
        }
    r.ops->graph_begin(r.dev);
    for (int i = 0; i < N; i++) go_home(&r, &x[i]);
    CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
    for (int turn = 0; turn < REPLAYS; turn++) {
        enum loads loads = turn % 2 ? LIKE_A_ROUTER : (turn / 2) % N_LOADS;
        for (int i = 0; i < N; i++) put_rows(&r, &x[i], p, loads, turn + i);
        r.ops->graph_launch(r.dev, graph);
        for (int i = 0; i < N; i++)
            if (!came_home(&r, &x[i], p->rank, turn + i)) {
                printf("FAILED: rank %d: other bytes, %d rows, replay %d\n", p->rank, x[i].R, turn);
                return 3;
            }
    }
    int ahead = p->world > ((const struct work *)work)->n_gpus ? 10 : 200;      /* on a shared GPU, ranks take turns */
    for (int turn = 0; turn < ahead; turn++) r.ops->graph_launch(r.dev, graph); /* far ahead of the device */
    CHECK_RC(r.ops->sync(r.dev, &e));
    if (!came_home(&r, &x[N - 1], p->rank, REPLAYS - 1 + N - 1)) return 6;
    r.ops->graph_free(r.dev, graph);
    for (int i = 0; i < N; i++) free_home(&r, &x[i]);
    close_rank(&r);
    if (p->rank == 0) printf("  queued and recorded, the bytes are there\n");
    return 0;
}

/* Recorded, one behind the other: places of 1 to 8,192 rows, 8 a row, 2,048 numbers wide. */
static int home_rate(const struct clime_place *p, void *work) {
    static const int rows[] = {1, 16, 64, 256, 8192};
    enum { EACH = 32, REPLAYS = 20, WIDTH = 4096 };
    struct rank r;
    struct clime_error e;
    if (open_rank(p, work, &r)) return 1;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++)
        for (int skewed = 0; skewed < 2; skewed++) {
            struct home x;
            struct clime_graph *graph;
            int32_t start[CLIME_GROUP_MAX * EXPERTS + 1];
            if (make_home(&r, p->world, rows[i] * 8, WIDTH / (size_t)p->world, &x)) return 5;
            fill_starts(p->world, x.R, skewed ? FIRST : EVEN, 0, start);
            r.ops->copy_in(r.dev, x.start, start, ((size_t)p->world * EXPERTS + 1) * sizeof *start);
            r.ops->graph_begin(r.dev);
            for (int k = 0; k < EACH; k++) go_home(&r, &x);
            CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
            r.ops->graph_launch(r.dev, graph);
            CHECK_RC(r.ops->sync(r.dev, &e));
            CHECK_RC(clime_group_agree(r.group, "ready", &e));
            int64_t t0 = clime_now_us();
            for (int k = 0; k < REPLAYS; k++) r.ops->graph_launch(r.dev, graph);
            CHECK_RC(r.ops->sync(r.dev, &e));
            double us = (double)(clime_now_us() - t0) / EACH / REPLAYS;
            if (p->rank == 0) printf("  %5d rows, %s: %7.2f us\n", rows[i], skewed ? "all one rank's" : "even", us);
            r.ops->graph_free(r.dev, graph);
            free_home(&r, &x);
        }
    close_rank(&r);
    return 0;
}

/* The last rank ends or stops amid replays, each of which needs what it has made. */
static int home_without(const struct clime_place *p, void *work) {
    const struct work *w = work;
    struct rank r;
    struct home x;
    struct clime_error e = {0};
    struct clime_graph *graph;
    char name[32];
    if (open_rank(p, w, &r)) return 1;
    if (make_home(&r, p->world, 512, 2048, &x)) return 5;
    put_rows(&r, &x, p, EVEN, 0);
    r.ops->graph_begin(r.dev);
    for (int k = 0; k < 100; k++) go_home(&r, &x);
    CHECK_RC(r.ops->graph_end(r.dev, &graph, &e));
    r.ops->graph_launch(r.dev, graph);
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
    return p->rank || (strstr(e.msg, name) && (!w->frozen || strstr(e.msg, "bringing rows home"))) ? 0 : 3;
}

int main(int argc, char **argv) {
    const char *only = argc > 2 ? argv[2] : "";
    int world = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2, n_gpus = count_gpus(world), failed = 0;
    if (!n_gpus) return 77;
    printf("%d ranks on %d GPUs\n", world, n_gpus);
    struct work all[] = {{CLIME_LINKS_MAPPED, n_gpus, home, false, false},
                         {CLIME_LINKS_MAPPED, n_gpus, home_rate, false, false},
                         {CLIME_LINKS_MAPPED, n_gpus, home_without, true, false},
                         {CLIME_LINKS_MAPPED, n_gpus, home_without, true, true}};
    const char *const what[] = {"rows of experts", "their rate", "a killed rank", "a frozen rank"};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) {
        if (n_gpus < world && strstr(what[i], "rate")) continue; /* it would be that of taking turns */
        if (strstr(what[i], only)) failed += family(what[i], world, &all[i]) != 0;
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
