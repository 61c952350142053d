/* Decode steps of a model of random weights, for the benchmarks of tests/gpu: one GPU's, or those of the leader of
 * several.
 */
#ifndef CLIME_TESTS_GPU_BENCH_DECODE_H
#define CLIME_TESTS_GPU_BENCH_DECODE_H

#include "model/rope.h"
#include "server/engine/followers.h"
#include "server/engine/step.h"

#include "tests/gpu/bench.h"

/* Of random weights; with several ranks, rank's share of it, which may have whole experts. */
static struct clime_model *make_model(const struct clime_config *c, int rank, int n_ranks, bool whole_experts) {
    struct clime_model *m = xcalloc(1, sizeof *m);
    m->cfg = *c;
    m->ops = ops;
    m->dev = dev;
    clime_layout_make(&m->cfg, CLIME_BF16, &m->layout);
    m->ranks.rank = rank;
    m->ranks.n = n_ranks;
    m->ranks.whole_experts = whole_experts;
    if (whole_experts) clime_layout_whole_experts(&m->layout);
    CHECK(!clime_model_lay(m, NULL));
    clime_planes_make(m);
    m->flat = room((size_t)m->shard.bytes);
    fill(m->flat, (size_t)m->shard.bytes);
    enum { POS = 16384 };
    size_t n = (size_t)(POS * c->rope_rot / 2);
    float *h = xmalloc(2 * n * 4), *table = room(2 * n * 4);
    clime_rope_table(&m->cfg, 0, POS, h, h + n);
    ops->copy_in(dev, table, h, 2 * n * 4);
    free(h);
    m->rope = (struct clime_rope){table, table + n, POS, c->rope_rot, c->rope_interleaved};
    clime_model_repack(m);
    return m;
}

/* Weights of all experts but n of each layer that has some. */
static double spared_experts(const struct clime_config *c, double n) {
    int layers = c->L - (c->dense[0] ? 1 : 0);
    return c->router.E ? (double)layers * (c->router.E - n) * 3 * c->D * c->F_expert : 0;
}

/* Weights that a decode step reads whose rows hit so many experts of a layer; that a row's products have. */
static double weights_read(const struct clime_model *m, double hit) {
    const struct clime_config *c = &m->cfg;
    return (double)clime_layout_params(&m->layout, false) - (c->tied ? 0 : (double)c->V * c->D) -
           spared_experts(c, hit);
}
static inline double weights_active(const struct clime_model *m) {
    return (double)clime_layout_params(&m->layout, false) - spared_experts(&m->cfg, m->cfg.router.k);
}

enum { MAX_BATCH = 256, CONTEXT = 1024, SEQ_PAGES = CONTEXT / CLIME_PAGE };
enum { PREFILLED = 8 }; /* prompts of a step */
static const int DECODED[] = {1, 16, 64, MAX_BATCH};

/* Of DECODED, so many batches have keys that fit beside the weights, with a tenth of the memory left for a step. */
static int batches_that_fit(const struct clime_model *m) {
    size_t available, total;
    int n = CLIME_COUNT(DECODED);
    m->ops->memory(m->dev, &available, &total);
    available -= available < total / 10 ? available : total / 10;
    while (n > 2 && (size_t)(DECODED[n - 1] * SEQ_PAGES) * clime_kv_page_bytes(m) > available) n--;
    return n;
}

/* Every rank of a server opens the same. */
static struct clime_runner *open_runner(struct clime_model *m, bool graphs, int n_batches) {
    struct clime_sched_options so = {
        .max_running = MAX_BATCH, .chunk = PREFILLED * CONTEXT, .n_pages = DECODED[n_batches - 1] * SEQ_PAGES};
    struct clime_runner *r;
    struct clime_error e;
    if (clime_runner_open(m, &so, 4 * CONTEXT, DECODED, graphs ? n_batches : 0, &r, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    return r;
}

/* Seconds a step, of n. ahead: as the server does, each started before the one before is finished, from which it takes
 * its tokens; else each when the last one's tokens are there. */
static double run_steps(struct clime_runner *r, const struct clime_step_plan *plan, bool ahead, int n,
                        const struct clime_step_results *results) {
    struct clime_step_plan plans[2] = {*plan, *plan}; /* in turn: a started one is kept until it is finished */
    struct clime_error e;
    double start = now();
    for (int i = 0; i < n; i++) {
        struct clime_step_plan *this = &plans[i % 2], *next = &plans[(i + 1) % 2];
        if (i == 0 || !ahead) clime_runner_start(r, this);
        if (ahead && i + 1 < n) {
            next->ahead = true;
            clime_runner_start(r, next);
        }
        if (clime_runner_finish(r, this, results, &e)) {
            printf("%s\n", e.msg);
            exit(1);
        }
    }
    return (now() - start) / n;
}

static struct { int layers, experts; /* hit in all these layers together */ } hits;

/* Also counts the experts that have rows. */
static void counting_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids,
                             int32_t *start, int32_t *from, int32_t *at) {
    int32_t begins[CLIME_MAX_EXPERTS + 1];
    ops->permute(d, T, r, ids, start, from, at);
    ops->copy_out(d, begins, start, (size_t)(r->E + 1) * sizeof *begins);
    hits.layers++;
    for (int e = 0; e < r->E; e++) hits.experts += begins[e] < begins[e + 1];
}

/* How many experts of a layer the rows of the timed steps hit, in the mean: those of one step more, whose tokens the
 * last of them drew. No formula says it, as random weights choose unevenly. A prompt that is owed a log-probability
 * keeps the step from being a recorded one, in which this table would not be asked; the choices are the same.
 */
static double experts_hit(struct clime_model *m, struct clime_runner *r, struct clime_step_plan plan,
                          const struct clime_step_results *results) {
    struct clime_seq *first = plan.items[0].seq;
    struct clime_ops counting = *ops;
    if (!m->cfg.router.E) return 0;
    memset(&hits, 0, sizeof hits);
    counting.permute = counting_permute;
    plan.ahead = true;
    first->prompt_logp_next = 0;
    m->ops = &counting;
    run_steps(r, &plan, false, 1, results);
    m->ops = ops;
    first->prompt_logp_next = first->n_prompt;
    return (double)hits.experts / hits.layers;
}

/* Decode steps as the server runs them: scheduler's plan in, drawn tokens out. The keys of one real prompt lie in the
 * pages of every sequence. Recorded steps, one after another and each started before the one before is finished; each
 * launch by itself; and recorded without the contract on products. */
static void bench_decode(struct clime_model *m, struct clime_followers *followers, bool graphs, bool overlap,
                         const char *name) {
    int n_batches = followers ? (int)CLIME_COUNT(DECODED) : batches_that_fit(m), n_seqs = DECODED[n_batches - 1];
    struct clime_runner *r = open_runner(m, graphs, n_batches);
    clime_runner_lead(r, followers);
    static struct clime_seq seqs[MAX_BATCH];
    static struct clime_output outs[MAX_BATCH];
    static struct clime_step_item items[MAX_BATCH];
    static struct clime_step_result results_of[MAX_BATCH];
    static struct clime_step_draw draws[MAX_BATCH];
    const struct clime_step_results results = {results_of, draws};
    static struct clime_page_copy copies[MAX_BATCH * SEQ_PAGES];
    static int32_t ids[CONTEXT], pages[MAX_BATCH][SEQ_PAGES];
    struct clime_sampling_params params = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    struct clime_logp_options logp = {.start = -1};
    for (int i = 0; i < CONTEXT; i++) ids[i] = (i * 7 + i / 5) % m->cfg.V;
    for (int i = 0; i < n_seqs; i++) {
        outs[i] = (struct clime_output){.params = &params, .logp = &logp, .seed = (uint64_t)i};
        seqs[i] = (struct clime_seq){.out = &outs[i],
                                     .ids = ids,
                                     .n_prompt = 1,
                                     .prompt_logp_next = 1,
                                     .n_total = CONTEXT,
                                     .max_total = 2 * CONTEXT,
                                     .n_kv = CONTEXT - 1,
                                     .pages = pages[i],
                                     .n_pages = SEQ_PAGES};
        for (int p = 0; p < SEQ_PAGES; p++) {
            pages[i][p] = (int)((long)(i * SEQ_PAGES + p) * 1361 % (n_seqs * SEQ_PAGES));
            copies[i * SEQ_PAGES + p] = (struct clime_page_copy){pages[0][p], pages[i][p]};
        }
    }
    struct clime_step_plan plan = {.items = items, .n_items = 1, .copies = copies};
    for (int i = 0; i < PREFILLED; i++) {
        seqs[i].n_kv = 0;
        items[i] = (struct clime_step_item){.seq = &seqs[i], .n_rows = CONTEXT, .sample = true};
    }
    plan.n_items = PREFILLED;
    plan.T = PREFILLED * CONTEXT;
    run_steps(r, &plan, false, 1, &results);
    double prefill = run_steps(r, &plan, false, 4, &results);
    printf("prefill, %s, %d rows: %.2f ms, %.0f tok/s\n", name, plan.T, prefill * 1e3, plan.T / prefill);
    for (int i = 0; i < PREFILLED; i++) seqs[i].n_kv = CONTEXT - 1;
    double per_key = (double)clime_kv_page_bytes(m) / CLIME_PAGE;
    for (int k = 0; k < n_batches; k++) {
        plan.T = plan.n_items = DECODED[k];
        plan.n_copies = DECODED[k] * SEQ_PAGES;
        for (int i = 0; i < DECODED[k]; i++)
            items[i] =
                (struct clime_step_item){.seq = &seqs[i], .first = CONTEXT - 1, .n_rows = 1, .sample = true, .from = i};
        run_steps(r, &plan, false, 1, &results);
        plan.n_copies = 0;
        run_steps(r, &plan, overlap, 10, &results);
        double t = run_steps(r, &plan, overlap, 100, &results);
        double hit = experts_hit(m, r, plan, &results);
        double floor = (2 * weights_read(m, hit) + per_key * CONTEXT * DECODED[k]) / copy_rate / m->ranks.n;
        printf("decode, %s, batch %d, context %d: %.3f ms a step, %.0f tok/s, %.0f%% of the bytes' limit", name,
               DECODED[k], CONTEXT, t * 1e3, DECODED[k] / t, 100 * floor / t);
        if (m->cfg.router.E) printf(" (of %d experts %.1f are hit in the mean layer)", m->cfg.router.E, hit);
        printf("%s\n", draws[0].drawn.bad ? ", BAD LOGITS" : "");
    }
    clime_runner_close(r);
}

#endif
