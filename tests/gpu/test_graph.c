/* Recorded decode steps: the server's scheduler and runner over the tiny checkpoints, with steps recorded at several
 * sizes, at one size that everything is padded to, and not at all, each step after the last one's results and before
 * them. Tokens and log-probabilities are the same bits. */
#include "tests/gpu/gpu_test.h"

#include "server/engine/step.h"
#include "server/engine/step_graphs.h"

static const char *const MODELS[] = {"qwen3_head64", "qwen3", "qwen2", "llama", "glm4"};
enum { N_SEQS = 20, MAX_LEN = 320, MAX_NEW = 60 };

struct run { /* what a way of running gave */
    int n[N_SEQS];
    int32_t ids[N_SEQS][MAX_NEW];
    float logp[N_SEQS][MAX_NEW];
    int n_launches, n_ahead;
};

static int n_launches;
static const struct clime_ops *plain_ops;

static void count_launch(struct clime_dev *d, struct clime_graph *g) {
    n_launches++;
    plain_ops->graph_launch(d, g);
}

static struct clime_model *open_model(const char *name) {
    static struct clime_ops counting;
    const char *root = getenv("CLIME_GOLDEN");
    char *dir = xasprintf("%s/%s", root ? root : "tests/golden", name);
    struct clime_error e = {0};
    struct clime_model *m;
    struct clime_model_options o = {
        .device = "cuda", .dtype = "bf16", .max_pos = MAX_LEN, .dev = {.deterministic = true}};
    if (clime_model_open(dir, &o, &m, &e)) {
        printf("%s: %s\n", dir, e.msg);
        exit(1);
    }
    free(dir);
    plain_ops = m->ops;
    counting = *m->ops;
    counting.graph_launch = count_launch;
    m->ops = &counting;
    return m;
}

static void run(struct clime_model *m, const int *sizes, int n_sizes, bool overlap, struct run *out) {
    struct clime_sched_options so = {.max_running = N_SEQS, .chunk = 500, .n_pages = 200, .cache = true};
    struct clime_sched sched;
    struct clime_step_plan plan[2];
    struct clime_step_result items[N_SEQS];
    struct clime_step_draw draws[N_SEQS];
    const struct clime_step_results results = {items, draws};
    struct clime_runner *r;
    struct clime_error e = {0};
    struct clime_seq seqs[N_SEQS] = {0};
    struct clime_output outs[N_SEQS] = {0};
    struct clime_sampling_params params = {.temperature = 0.8, .top_p = 1, .repetition_penalty = 1};
    struct clime_logp_options logp = {.start = -1};
    memset(out, 0, sizeof *out);
    n_launches = 0;
    if (clime_runner_open(m, &so, MAX_LEN, sizes, n_sizes, &r, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    clime_sched_init(&sched, &so);
    for (int i = 0; i < 2; i++) clime_step_plan_init(&plan[i], N_SEQS);
    for (int i = 0; i < N_SEQS; i++) { /* they end three steps apart, so every batch size comes */
        struct clime_seq *q = &seqs[i];
        q->n_prompt = q->n_total = q->prompt_logp_next = 1 + i * 13;
        q->max_total = q->n_prompt + MAX_NEW - 3 * i + 1;
        q->ids = xmalloc((size_t)q->max_total * sizeof *q->ids);
        q->pages = xmalloc((size_t)clime_pages_for(q->max_total) * sizeof *q->pages);
        for (int k = 0; k < q->n_prompt; k++) q->ids[k] = (k * 31 + i * 7) % m->cfg.V;
        q->arrival = i;
        q->out = &outs[i];
        outs[i].params = &params;
        outs[i].logp = &logp;
        outs[i].seed = (uint64_t)i;
        clime_sched_add(&sched, q);
    }
    bool ahead = false;
    for (int turn = 0; ahead || sched.n_running + sched.n_waiting > 0; turn ^= ahead) {
        struct clime_step_plan *now = &plan[turn], *next = &plan[!turn];
        if (!ahead) {
            clime_sched_plan(&sched, now);
            clime_runner_start(r, now);
        }
        ahead = overlap && now->mark >= 0 && clime_sched_plan_ahead(&sched, now, next);
        if (ahead) clime_runner_start(r, next);
        out->n_ahead += ahead;
        if (clime_runner_finish(r, now, &results, &e)) {
            printf("FAILED: %s\n", e.msg);
            exit(1);
        }
        clime_sched_done(&sched, now);
        for (int i = 0; i < now->n_items; i++) {
            struct clime_seq *q = now->items[i].seq;
            if (!q || items[i].n_draws == 0) continue;
            const struct clime_drawn *drawn = &items[i].draws[0].drawn;
            int s = (int)(q - seqs);
            if (out->n[s] < MAX_NEW) {
                out->ids[s][out->n[s]] = drawn->id;
                out->logp[s][out->n[s]++] = drawn->logp;
            }
            q->ids[q->n_total++] = drawn->id;
            bool stops = drawn->id % 100 == s; /* where a step ahead has a row of it already */
            if (q->n_total < q->max_total && !stops) continue;
            for (int k = 0; ahead && k < next->n_items; k++)
                if (next->items[k].seq == q) next->items[k].seq = NULL;
            clime_sched_remove(&sched, q);
        }
    }
    out->n_launches = n_launches;
    for (int i = 0; i < N_SEQS; i++) {
        free(seqs[i].ids);
        free(seqs[i].pages);
    }
    for (int i = 0; i < 2; i++) clime_step_plan_free(&plan[i]);
    clime_sched_free(&sched);
    clime_runner_close(r);
}

int main(void) {
    static const int MANY[] = {1, 2, 4, 8, 16, 20},
                     EACH[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, ONE[] = {20};
    static const struct {
        const int *sizes;
        int n;
        bool overlap;
        const char *name;
    } WAYS[] = {{MANY, 6, false, "several sizes"},
                {EACH, 20, false, "each size"},
                {ONE, 1, false, "one size"},
                {MANY, 6, true, "several sizes, overlapped"},
                {ONE, 1, true, "one size, overlapped"},
                {NULL, 0, true, "not recorded, overlapped"}};
    static struct run plain, recorded;
    struct gpu_test t;
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(MODELS); i++) {
        struct clime_model *m = open_model(MODELS[i]);
        run(m, NULL, 0, false, &plain);
        check(&t, plain.n_launches == 0, MODELS[i], "replayed without being asked to");
        for (size_t w = 0; w < CLIME_COUNT(WAYS); w++) {
            char what[96];
            run(m, WAYS[w].sizes, WAYS[w].n, WAYS[w].overlap, &recorded);
            snprintf(what, sizeof what, "%s, %s: %d replays, %d overlapped", MODELS[i], WAYS[w].name,
                     recorded.n_launches, recorded.n_ahead);
            printf("%s\n", what);
            check(&t, WAYS[w].n == 0 || recorded.n_launches > 10, what, "too few replays");
            check(&t, !WAYS[w].overlap || recorded.n_ahead > 30, what, "too few overlapped");
            check(&t, memcmp(plain.ids, recorded.ids, sizeof plain.ids) == 0, what, "other tokens");
            check(&t, memcmp(plain.logp, recorded.logp, sizeof plain.logp) == 0, what, "other log-probabilities");
        }
        clime_model_close(m);
    }
    return gpu_test_close(&t);
}
