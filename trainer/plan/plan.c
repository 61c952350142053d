/* Run planner: the model of time and memory (plan.h). Called by clime-train plan and its test; pure.
 *
 * Work on different parts of a device costs the longer of the two; link transfers overlap the products of the same
 * micro-batch, or dominate. */
#include "trainer/plan/plan.h"

#include <math.h>
#include <string.h>

#include "trainer/learn/lanes.h"

#define GIB (double)(1 << 30)

const char *const clime_plan_way_names[CLIME_PLAN_WAYS] = {
    [CLIME_PLAN_REPLICATED] = "replicated", [CLIME_PLAN_SHARDED] = "sharded", [CLIME_PLAN_EXPERTS] = "expert parallel"};

/* ---- serving ---- */

double clime_plan_decode_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                           double context, int tp) {
    const struct clime_work_shares *s = &clime_work_shares[w->kind];
    double bytes_per_s = d->copy_gbs * 1e9 * s->decode_bytes, flops_per_s = d->gemm_tflops * 1e12 * s->decode_gemm;
    double read = 2 * clime_weights_hit(w, rows) / tp / bytes_per_s;
    double products = 2 * (w->active + w->head) * rows / tp / flops_per_s;
    bool whole = w->kind == CLIME_WORK_LATENT; /* every device stores all latent rows */
    double kv = w->kv_bytes * context * rows / (whole ? 1 : tp) / bytes_per_s;
    double gathers = tp > 1 ? 4.0 * w->layers * CLIME_GATHER_US * 1e-6 : 0;
    return fmax(read, products) + kv + w->layers * s->layer_us * 1e-6 + gathers;
}

double clime_plan_prefill_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                            double length, int tp) {
    return rows * clime_row_flops(w, length / 2) / tp / (d->gemm_tflops * 1e12 * clime_work_shares[w->kind].prefill);
}

static void plan_serving(const struct clime_plan_wish *wish, struct clime_run_plan *out) {
    const struct clime_model_work *w = &out->work;
    const struct clime_plan_training *t = out->way < 0 ? NULL : &out->training[out->way];
    double answers = wish->prompts * wish->samples, length = wish->prompt_len + wish->answer_len;
    double left = wish->device->memory_gib - (t ? t->gib : 0);
    out->tp = wish->tp ? wish->tp : wish->devices / wish->hosts; /* the trainer's own server: one over its devices */
    bool in_place = out->tp == 1 && out->way == CLIME_PLAN_REPLICATED; /* it uses the trainer's weights */
    double kv_gib = 0.85 * left - (in_place ? 0 : 2 * w->weights / out->tp / GIB);
    out->servers = wish->devices / out->tp;
    double of_position = w->kv_bytes / (w->kind == CLIME_WORK_LATENT ? 1 : out->tp);
    out->kv_tokens = fmax(0, kv_gib * GIB / of_position);
    double each = ceil(answers / out->servers);
    out->running = fmin(fmin(each, floor(out->kv_tokens / length)), 256);
    if (out->running < 1) return;
    double turns = each / out->running;
    out->generate_s =
        turns * wish->answer_len *
            clime_plan_decode_s(w, wish->device, out->running, wish->prompt_len + wish->answer_len / 2, out->tp) +
        clime_plan_prefill_s(w, wish->device, ceil(wish->prompts / out->servers) * wish->prompt_len, wish->prompt_len,
                             out->tp);
}

/* ---- training ---- */

double clime_plan_train_s(const struct clime_model_work *w, const struct clime_device_rates *d, double rows,
                          double length, double loss_share, enum clime_recompute recompute) {
    static const double again[] = {[CLIME_RECOMPUTE_NONE] = 1,
                                   [CLIME_RECOMPUTE_SELECTIVE] = CLIME_SELECTIVE_COST,
                                   [CLIME_RECOMPUTE_FULL] = 4.0 / 3};
    double flops = again[recompute] * 3 * clime_row_flops(w, length / 2) + 3 * 2 * w->head * loss_share;
    return rows * flops / (d->gemm_tflops * 1e12 * clime_work_shares[w->kind].train);
}

/* Seconds to gather or scatter `bytes`, spread over n ranks. Neighbours may share a host. */
static double among(const struct clime_plan_wish *wish, int n, bool neighbours, double bytes) {
    const bool peers = wish->hosts == 1 || (neighbours && n <= wish->devices / wish->hosts);
    const double gbs = peers ? wish->device->peers_gbs : wish->device->network_gbs;
    return bytes * (n - 1) / n / (gbs * 1e9);
}

static double over_links(const struct clime_plan_wish *wish, double bytes) {
    return among(wish, wish->devices, true, bytes);
}

/* The optimizer of a step: 30 bytes a parameter in device memory; or the host's cores, shared by devices. */
static double optimizer_s(const struct clime_plan_wish *wish, double weights) {
    if (wish->offload) return weights / wish->hosts / wish->device->host_adam_per_s;
    return 30 * weights / wish->devices / (0.95 * wish->device->copy_gbs * 1e9);
}

/* Each rank's own, and on the first host rank 0's copy of everything its rank does not hold whole. */
static double host_gib(const struct clime_plan_wish *wish, const struct clime_memory_plan *memory, double copy) {
    return (((double)memory->host - copy) * wish->devices / wish->hosts + copy) / GIB;
}

static int ranks_of(const struct clime_plan_wish *wish) {
    return wish->devices < CLIME_GROUP_MAX ? wish->devices : CLIME_GROUP_MAX; /* a trainer's maximum */
}

/* Exchange between ranks with the same experts, which split their sums and updates: `bytes` per element. */
static double same_experts_s(const struct clime_plan_wish *wish, const struct clime_run_plan *out, double bytes) {
    return among(wish, ranks_of(wish) / out->experts_over, false, bytes * out->work.experts / out->experts_over);
}

static int context_of(const struct clime_plan_wish *wish) {
    return wish->cp > 1 ? wish->cp : 1;
}

/* Exchange of rows between ranks that share a micro-batch, for attention over heads (docs/devices.md). */
static double context_s(const struct clime_plan_wish *wish, const struct clime_model_work *w) {
    const int n = context_of(wish);
    const double heads = w->H * (w->key + w->value), kv = w->HK * (w->key + w->value);
    const double forward = heads + (w->HK ? kv : w->key), backward = 2 * heads + (w->HK ? 2 * kv : (n + 1) * w->key);
    const double passes = wish->recompute == CLIME_RECOMPUTE_FULL ? 2 * forward + backward : forward + backward;
    return among(wish, n, true, 2.0 * wish->rows * w->layers * passes);
}

/* The work of the rank with the most heads: queries follow their key/value head; latent attention's heads are dealt
 * out. */
static struct clime_model_work most_heads(const struct clime_plan_wish *wish, const struct clime_model_work *w) {
    const int n = context_of(wish), heads = w->HK ? w->HK : w->H;
    struct clime_model_work out = *w;
    out.pair_flops *= ceil((double)heads / n) * n / heads;
    return out;
}

static void plan_training(const struct clime_plan_wish *wish, struct clime_run_plan *out) {
    const struct clime_model_work *w = &out->work, most = most_heads(wish, w);
    const int cp = context_of(wish);
    double length = wish->prompt_len + wish->answer_len;
    double tokens = wish->prompts * wish->samples * length;
    out->micro_batches = ceil(ceil(tokens / wish->rows / cp) * cp / wish->devices);
    out->optimizer_s = optimizer_s(wish, w->weights);
    for (int way = 0; way < CLIME_PLAN_WAYS; way++) {
        struct clime_plan_training *t = &out->training[way];
        bool stay = way == CLIME_PLAN_EXPERTS, cut = way != CLIME_PLAN_REPLICATED;
        double dense = w->weights - (stay ? w->experts : 0); /* gathered or exchanged weights */
        const struct clime_memory_plan *memory = &out->memory[way];
        if (!t->possible) continue;
        t->gib = (double)memory->need / GIB;
        t->host_gib = host_gib(wish, memory, cut ? 2 * w->weights : 0);
        t->fits = t->gib <= wish->device->memory_gib && t->host_gib <= wish->device->host_gib;
        /* gate and up of experts that stay are recomputed at any level: counted as full recomputation */
        t->compute_s = clime_plan_train_s(&most, wish->device, fmin(wish->rows, tokens / cp), length,
                                          wish->answer_len / length, stay ? CLIME_RECOMPUTE_FULL : wish->recompute);
        t->exchange_s = over_links(wish, 4 * dense);
        if (stay) t->exchange_s += same_experts_s(wish, out, 4);
        if (cut) t->gather_s = 2 * over_links(wish, 2 * dense); /* a full recomputation and its backward share one */
        t->rows_s = context_s(wish, w);
        if (stay) /* a row to each chosen expert and one back; two there and one back in the backward pass */
            t->rows_s += among(wish, out->experts_over, true, 5 * 2.0 * wish->rows * w->k * w->D * w->expert_layers);
        double each = t->compute_s;
        if (wish->devices > 1) /* rows are not overlapped: the sender waits for their results */
            each = fmax(t->compute_s / CLIME_RANKS_SHARE, t->gather_s + t->exchange_s) + t->rows_s;
        t->gather_s += t->rows_s;
        t->step_s = out->micro_batches * each + out->optimizer_s;
        if (stay) t->step_s += same_experts_s(wish, out, 2);
    }
}

/* The learner's own plan, made on the CPU, adjusted to a device: weights not packed a second time, larger chunks of
 * logits, code and scratch. */
static void plan_memory(struct clime_model *m, const struct clime_plan_wish *wish, int world, struct clime_part part,
                        struct clime_memory_plan *out) {
    double chunk = wish->device->head_gib * GIB / 4 / m->cfg.V;
    const int cp = context_of(wish);
    const struct clime_train_options policy = {.max_rows = wish->rows * cp,
                                               .max_seqs = wish->rows * cp,
                                               .head_chunk = chunk < wish->rows ? (int)chunk : wish->rows,
                                               .recompute = wish->recompute,
                                               .rows = {.cuts = cp, .ranks = cp}};
    const struct clime_memory_users users = {
        .policy = policy, .offload = wish->offload, .part = {0, world, part.experts}, .lanes = world};
    clime_model_ring(m, &m->layout, part);
    clime_memory_plan_make(m, &users, out);
    out->part[CLIME_MEM_WEIGHTS] = clime_model_own_bytes(m);
    out->part[CLIME_MEM_SCRATCH] = (size_t)(wish->device->code_gib * GIB);
    out->need = 0;
    for (int i = 0; i < CLIME_MEM_N; i++) out->need += out->part[i];
}

/* Number of neighbouring ranks with equal shares of the experts: as requested, or the maximum; 1 = impossible here. */
static int experts_over(const struct clime_plan_wish *wish, const struct clime_model_work *w) {
    int most = 1;
    while (w->E && w->E % (2 * most) == 0 && ranks_of(wish) % (2 * most) == 0) most *= 2;
    return wish->experts_over == 0 ? most : most % wish->experts_over == 0 ? wish->experts_over : 1;
}

void clime_run_plan(struct clime_model *m, const struct clime_plan_wish *wish, struct clime_run_plan *out) {
    const int world = ranks_of(wish);
    memset(out, 0, sizeof *out);
    clime_model_work(&m->cfg, &m->layout, &out->work);
    out->experts_over = experts_over(wish, &out->work);
    for (int way = 0; way < CLIME_PLAN_WAYS; way++) {
        const bool stay = way == CLIME_PLAN_EXPERTS;
        const struct clime_part part = {0, way == CLIME_PLAN_REPLICATED ? 1 : world, stay ? out->experts_over : 0};
        out->training[way].possible = !stay || out->experts_over > 1;
        if (out->training[way].possible) plan_memory(m, wish, world, part, &out->memory[way]);
    }
    plan_training(wish, out);
    out->way = -1;
    for (int way = CLIME_PLAN_WAYS - 1; way >= 0; way--)
        if (out->training[way].fits) out->way = way;
    plan_serving(wish, out);
    double whole = out->generate_s + (out->way < 0 ? 0 : out->training[out->way].step_s);
    if (out->way >= 0 && out->generate_s > 0)
        out->tokens_per_s = wish->prompts * wish->samples * wish->answer_len / whole / wish->devices;
}
