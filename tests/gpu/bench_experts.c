/* Speed of the experts' operations on the shapes of Qwen3-30B-A3B and Moonlight, with an even router and one that gives
 * its favourite about ten times the mean: decode against the bytes of the experts that are hit, prefill and training
 * against the products' ceiling. Weights of several layers in turn, so that the L2 does not hold them. */
#include "tests/gpu/bench_router.h"

enum { LAYERS = 4, MOST_ROWS = 8192 };

static const struct shape {
    const char *name;
    int D, F, E, k;
} SHAPES[] = {{"Qwen3-30B-A3B", 2048, 768, 128, 8}, {"Moonlight", 2048, 1408, 64, 6}};

struct layer {
    struct clime_matrix router, gate_up, down;
};
struct work {
    void *x, *in, *gu, *h, *out, *y;
    float *scores, *weights, *unread_w;
    int32_t *ids[LAYERS], *start, *from, *at, *unread;
    uint32_t *fold;
};

/* A layer's MLP as model/forward.c queues it, but that the choice is given. */
static void queue(const struct shape *s, int T, const struct layer *l, const struct work *w, const int32_t *ids) {
    struct clime_router r = {.E = s->E, .k = s->k, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1};
    int R = T * s->k;
    ops->gemm(dev, CLIME_F32, T, w->x, &l->router, w->scores);
    ops->route(dev, T, &r, w->scores, NULL, NULL, w->scores, w->unread, w->unread_w, w->fold);
    ops->permute(dev, T, &r, ids, w->start, w->from, w->at);
    ops->grouped_swiglu(dev, R, w->start, w->from, w->x, &l->gate_up, w->in, w->gu, w->h);
    ops->grouped_gemm(dev, R, w->start, w->h, &l->down, w->out);
    ops->combine(dev, T, s->D, s->k, w->at, w->weights, w->out, NULL, NULL, w->y);
}

static void bench_decode(const struct shape *s, const struct layer *layers, struct work *w, bool skewed) {
    static const int BATCH[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    for (size_t b = 0; b < CLIME_COUNT(BATCH); b++) {
        int T = BATCH[b], R = T * s->k;
        int32_t *ids = xmalloc((size_t)R * 4);
        double share = 0, hit = 0, t, up, down, small, each = 2.0 * s->D * s->F;
        for (int l = 0; l < LAYERS; l++) {
            hit += choose_experts(s->E, s->k, skewed, T, ids, &share);
            ops->copy_in(dev, w->ids[l], ids, (size_t)R * 4);
        }
        hit /= LAYERS;
        struct clime_router r = {.E = s->E, .k = s->k};
        TIME(small, 20, ops->permute(dev, T, &r, w->ids[LAYERS - 1], w->start, w->from, w->at));
        TIME(up, 40, ops->grouped_gemm(dev, R, w->start, w->in, &layers[turn_ % LAYERS].gate_up, w->gu));
        TIME(down, 40, ops->grouped_gemm(dev, R, w->start, w->h, &layers[turn_ % LAYERS].down, w->out));
        struct clime_graph *graph;
        struct clime_error e;
        for (int l = 0; l < LAYERS; l++) queue(s, T, &layers[l], w, w->ids[l]);
        ops->graph_begin(dev);
        for (int l = 0; l < LAYERS; l++) queue(s, T, &layers[l], w, w->ids[l]);
        if (ops->graph_end(dev, &graph, &e)) exit(1);
        TIME(t, 20, ops->graph_launch(dev, graph));
        t /= LAYERS;
        ops->graph_free(dev, graph);
        printf("%s, decode, batch %d, %s (%.1f x the mean), %.0f experts hit: a layer recorded %.1f us, %.0f%% of the "
               "bytes' limit; gate|up %.1f us %.0f%%, down %.1f us %.0f%%; permute %.1f us\n",
               s->name, T, skewed ? "skewed" : "even", share, hit, t * 1e6, 100 * 3 * each * hit / copy_rate / t,
               up * 1e6, 100 * 2 * each * hit / copy_rate / up, down * 1e6, 100 * each * hit / copy_rate / down,
               small * 1e6);
        free(ids);
    }
}

static void bench_rows(const struct shape *s, const struct layer *layers, struct work *w, int T, bool skewed) {
    int R = T * s->k, D = s->D, F = s->F;
    struct clime_router r = {.E = s->E, .k = s->k, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1};
    int32_t *ids = xmalloc((size_t)R * 4);
    double share, flop = 2.0 * R * D * F, t[12], layer;
    choose_experts(s->E, s->k, skewed, T, ids, &share);
    ops->copy_in(dev, w->ids[0], ids, (size_t)R * 4);
    TIME(t[0], 5, ops->permute(dev, T, &r, w->ids[0], w->start, w->from, w->at));
    TIME(t[1], 5, ops->gather(dev, R, D, w->from, w->x, w->in));
    TIME(t[2], 5, ops->grouped_gemm(dev, R, w->start, w->in, &layers[turn_ % LAYERS].gate_up, w->gu));
    TIME(t[3], 5, ops->swiglu(dev, R, F, w->gu, w->h));
    TIME(t[4], 5, ops->grouped_gemm(dev, R, w->start, w->h, &layers[turn_ % LAYERS].down, w->out));
    TIME(t[5], 5, ops->combine(dev, T, D, s->k, w->at, w->weights, w->out, NULL, NULL, w->y));
    TIME(layer, 5, queue(s, T, &layers[turn_ % LAYERS], w, w->ids[0]));
    printf("%s, %d rows, %s (%.1f x the mean): a layer %.0f us, %.0f TFLOP/s, %.0f%% of the products' ceiling; permute "
           "%.0f, gather %.0f, gate|up %.0f (%.0f TFLOP/s), swiglu %.0f, down %.0f (%.0f TFLOP/s), combine %.0f us\n",
           s->name, T, skewed ? "skewed" : "even", share, layer * 1e6, 3 * flop / layer * 1e-12,
           300 * flop / layer / gemm_rate, t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, 2 * flop / t[2] * 1e-12, t[3] * 1e6,
           t[4] * 1e6, flop / t[4] * 1e-12, t[5] * 1e6);
    if (T < MOST_ROWS) {
        free(ids);
        return;
    }
    size_t each = (size_t)s->E * (size_t)D * (size_t)F;
    float *dw = room(each * 2 * 4);
    ops->zero(dev, dw, each * 2 * 4);
    TIME(t[6], 5, ops->grouped_dx(dev, R, w->start, w->gu, &layers[turn_ % LAYERS].gate_up, w->in));
    TIME(t[7], 5, ops->grouped_dx(dev, R, w->start, w->out, &layers[turn_ % LAYERS].down, w->h));
    TIME(t[8], 5, ops->grouped_dw(dev, R, w->start, &layers[0].gate_up, w->gu, w->in, true, dw));
    TIME(t[9], 5, ops->grouped_dw(dev, R, w->start, &layers[0].down, w->out, w->h, true, dw));
    TIME(t[10], 5, ops->grouped_dw(dev, R, w->start, &layers[0].gate_up, w->gu, w->in, false, dw));
    TIME(t[11], 5, ops->grouped_dw(dev, R, w->start, &layers[0].down, w->out, w->h, false, dw));
    printf("  dX %.0f us (%.0f TFLOP/s) and %.0f us (%.0f); dW %.0f us (%.0f TFLOP/s, %.0f%% of the bytes' limit) and "
           "%.0f us (%.0f, %.0f%%); written instead of added %.0f us (%.0f TFLOP/s) and %.0f us (%.0f)\n",
           t[6] * 1e6, 2 * flop / t[6] * 1e-12, t[7] * 1e6, flop / t[7] * 1e-12, t[8] * 1e6, 2 * flop / t[8] * 1e-12,
           100 * 16.0 * (double)each / copy_rate / t[8], t[9] * 1e6, flop / t[9] * 1e-12,
           100 * 8.0 * (double)each / copy_rate / t[9], t[10] * 1e6, 2 * flop / t[10] * 1e-12, t[11] * 1e6,
           flop / t[11] * 1e-12);
    ops->free(dev, dw);
    free(ids);
}

static void bench_shape(const struct shape *s) {
    size_t R = (size_t)(MOST_ROWS * s->k), D = (size_t)s->D, F = (size_t)s->F, E = (size_t)s->E, T = MOST_ROWS;
    struct layer layers[LAYERS];
    struct work w;
    struct {
        void **at;
        size_t bytes;
    } rooms[] = {{&w.x, T * D * 2},
                 {&w.in, R * D * 2},
                 {&w.gu, R * 2 * F * 2},
                 {&w.h, R * F * 2},
                 {&w.out, R * D * 2},
                 {&w.y, T * D * 2},
                 {(void **)&w.scores, T * E * 4},
                 {(void **)&w.weights, R * 4},
                 {(void **)&w.unread_w, R * 4},
                 {(void **)&w.start, (E + 1) * 4},
                 {(void **)&w.from, R * 4},
                 {(void **)&w.at, R * 4},
                 {(void **)&w.unread, R * 4},
                 {(void **)&w.fold, MOST_ROWS * 4},
                 {(void **)&w.ids[0], R * 4},
                 {(void **)&w.ids[1], R * 4},
                 {(void **)&w.ids[2], R * 4},
                 {(void **)&w.ids[3], R * 4}};
    for (size_t i = 0; i < CLIME_COUNT(rooms); i++) {
        *rooms[i].at = room(rooms[i].bytes);
        fill_below(*rooms[i].at, rooms[i].bytes, 1);
    }
    for (int l = 0; l < LAYERS; l++) {
        void *router = room(E * D * 2), *gu = room(E * 2 * F * D * 2), *down = room(E * D * F * 2);
        fill(router, E * D * 2);
        fill(gu, E * 2 * F * D * 2);
        fill(down, E * D * F * 2);
        layers[l] = (struct layer){{.N = s->E, .K = s->D, .data = router},
                                   {.N = 2 * s->F, .K = s->D, .data = gu, .n_experts = s->E},
                                   {.N = s->D, .K = s->F, .data = down, .n_experts = s->E}};
    }
    for (int skewed = 0; skewed < 2; skewed++) {
        bench_decode(s, layers, &w, skewed);
        bench_rows(s, layers, &w, 2048, skewed);
        bench_rows(s, layers, &w, MOST_ROWS, skewed);
    }
    for (size_t i = 0; i < CLIME_COUNT(rooms); i++) ops->free(dev, *rooms[i].at);
    for (int l = 0; l < LAYERS; l++) {
        const void *all[] = {layers[l].router.data, layers[l].gate_up.data, layers[l].down.data};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) ops->free(dev, (void *)(uintptr_t)all[i]);
    }
}

int main(void) {
    struct side s;
    side_open(&s, "cuda");
    ops = s.ops;
    dev = s.dev;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s\n", clime_dev_info(dev)->name);
    bench_ceilings();
    for (size_t i = 0; i < CLIME_COUNT(SHAPES); i++) bench_shape(&SHAPES[i]);
    ops->close(dev);
    return 0;
}
