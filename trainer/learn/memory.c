/* The trainer's memory plan. Called by the learner when it opens and by --explain; main thread; owns nothing.
 *
 * Invariant: every byte the learner allocates on a device with its own memory is in a part, so a plan that passes
 * cannot run out of memory later. Sizes come from the allocating code (clime_plan_bytes, clime_train_sizes,
 * clime_optimizer_bytes), never from a second formula.
 */
#include "trainer/learn/memory.h"

#include <stdio.h>

#include "common/os/memory.h"
#include "trainer/learn/lanes.h"
#include "trainer/learn/optimizer.h"

static const char *const names[CLIME_MEM_N] = {
    [CLIME_MEM_WEIGHTS] = "weights",     [CLIME_MEM_MASTER] = "master weights",     [CLIME_MEM_MOMENTS] = "moments",
    [CLIME_MEM_GRADIENTS] = "gradients", [CLIME_MEM_ACTIVATIONS] = "activations",   [CLIME_MEM_HEAD] = "head",
    [CLIME_MEM_SCRATCH] = "scratch",     [CLIME_MEM_REFERENCE] = "reference model", [CLIME_MEM_CRITIC] = "critic",
    [CLIME_MEM_CODE] = "kernels' code",  [CLIME_MEM_TRIAL] = "trials of products",
};

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

const char *clime_recompute_name(enum clime_recompute r) {
    static const char *const of[] = {"none", "selective", "full"};
    return of[r];
}

void clime_memory_plan_make(const struct clime_model *m, const struct clime_memory_users *u,
                            struct clime_memory_plan *out) {
    struct clime_train_sizes s, r;
    struct clime_optimizer_bytes o;
    const size_t lanes = clime_lanes_bytes(m, u->lanes, u->part);
    *out = (struct clime_memory_plan){.own_memory = m->ops->own_memory,
                                      .recompute = u->policy.recompute,
                                      .keep_logits = u->policy.keep_logits,
                                      .max_rows = u->policy.max_rows};
    snprintf(out->device, sizeof out->device, "%s", clime_dev_info(m->dev)->name);
    m->ops->memory(m->dev, &out->free_bytes, &out->total_bytes);
    clime_train_sizes(m, &u->policy, &s);
    clime_optimizer_bytes(m, u->offload, u->part, &o);
    /* both use the policy's context and its scratch */
    if (u->has_reference) {
        clime_train_sizes(m, &u->reference, &r);
        out->part[CLIME_MEM_REFERENCE] = clime_model_memory(m) + r.activations + r.head;
    }
    if (u->has_critic) {
        clime_train_sizes(m, &u->critic, &r);
        out->part[CLIME_MEM_CRITIC] =
            clime_model_memory(m) + o.master + o.moments + r.gradients + r.activations + r.head + lanes;
    }
    out->part[CLIME_MEM_WEIGHTS] = clime_model_memory(m);
    out->part[CLIME_MEM_MASTER] = o.master;
    out->part[CLIME_MEM_MOMENTS] = o.moments;
    out->part[CLIME_MEM_GRADIENTS] = s.gradients + lanes;
    out->part[CLIME_MEM_ACTIVATIONS] = s.activations;
    out->part[CLIME_MEM_HEAD] = s.head;
    out->part[CLIME_MEM_SCRATCH] = s.scratch + (u->part.world > 1 ? m->ops->links_bytes(u->part.world) : 0);
    out->part[CLIME_MEM_CODE] = m->ops->code_bytes;
    out->part[CLIME_MEM_TRIAL] = s.trial; /* reference and critic have the policy's shapes */
    out->host = o.host * (u->has_critic ? 2 : 1);
    if (m->ring && u->part.rank == 0) out->host_weights = clime_model_bytes(m);
    out->host += out->host_weights;
    for (int i = 0; i < CLIME_MEM_N; i++) out->need += out->part[i];
}

bool clime_memory_plan_fits(const struct clime_memory_plan *p) {
    return !p->own_memory || p->need <= p->free_bytes;
}

/* With servers, kept logits use at most 1 / KEEP_PART of the memory left without them: servers that open later
 * (--colocate) or restart plan their KV with a fraction of it. */
#define KEEP_PART 8

void clime_memory_fit(const struct clime_model *m, struct clime_memory_users *u) {
    struct clime_memory_users with = *u;
    struct clime_memory_plan p, q;
    u->policy.keep_logits = false;
    if (!m->ops->own_memory || u->policy.recompute != CLIME_RECOMPUTE_NONE) return;
    with.policy.keep_logits = true;
    clime_memory_plan_make(m, u, &p);
    clime_memory_plan_make(m, &with, &q);
    size_t more = q.need - p.need;
    size_t others = m->ops->code_bytes; /* must stay free: another program's kernels, */
    if (u->servers) {
        others += clime_model_bytes(m); /* a server's staging of an update */
        if (others < (KEEP_PART - 1) * more) others = (KEEP_PART - 1) * more;
    }
    u->policy.keep_logits = more > 0 && q.need + others <= q.free_bytes;
}

/* Names the cheapest recomputation level that fits, with the states as they are and offloaded. */
static void add_ways(const struct clime_model *m, const struct clime_memory_users *u, struct clime_buf *out) {
    int n = 0;
    for (int host = u->offload; host <= 1; host++) {
        for (int level = (int)u->policy.recompute; level <= CLIME_RECOMPUTE_FULL; level++) {
            struct clime_memory_users other = *u;
            struct clime_memory_plan p;
            other.offload = host;
            other.policy.recompute = other.critic.recompute = (enum clime_recompute)level;
            clime_memory_plan_make(m, &other, &p);
            if (!clime_memory_plan_fits(&p)) continue;
            clime_buf_adds(out, n++ ? ", or with" : "It fits with");
            if (host && !u->offload) clime_buf_adds(out, " --optimizer-cpu-offload");
            if (other.policy.recompute != u->policy.recompute)
                clime_buf_printf(out, " --recompute-granularity %s", clime_recompute_name(other.policy.recompute));
            clime_buf_printf(out, " (%.2f GiB)", gib(p.need));
            break;
        }
    }
    clime_buf_adds(out, n ? ". " : "Neither recomputing nor --optimizer-cpu-offload is enough. ");
}

enum clime_err clime_memory_plan_check(const struct clime_model *m, const struct clime_memory_users *u,
                                       const struct clime_memory_plan *p, struct clime_error *e) {
    if (clime_memory_plan_fits(p)) return CLIME_OK;
    struct clime_buf text;
    clime_buf_init(&text, 4096);
    clime_memory_plan_line(p, &text);
    clime_buf_adds(&text, ", which is too little. ");
    add_ways(m, u, &text);
    clime_buf_adds(&text, "A smaller --max-tokens-per-gpu takes less for activations; servers on the same device take "
                          "less with --server-mem-fraction-static");
    enum clime_err rc = clime_fail(e, CLIME_ERR_LIMIT, "training does not fit: %s", text.data);
    clime_buf_free(&text);
    return rc;
}

void clime_memory_use(const struct clime_model *m, const struct clime_memory_plan *p, struct clime_memory_use *out) {
    size_t free_bytes, total, resident = clime_resident_bytes();
    *out = (struct clime_memory_use){.planned = p->need, .used = resident};
    if (!p->own_memory) return;
    m->ops->memory(m->dev, &free_bytes, &total);
    out->used = p->free_bytes > free_bytes ? p->free_bytes - free_bytes : 0;
    out->host_planned = p->host;
    out->host = resident;
}

static const char *remark(const struct clime_memory_plan *p, int part) {
    return part == CLIME_MEM_HEAD && p->keep_logits ? " (logits kept)" : "";
}

void clime_memory_plan_line(const struct clime_memory_plan *p, struct clime_buf *out) {
    bool first = true;
    for (int i = 0; i < CLIME_MEM_N; i++) {
        if (!p->part[i]) continue;
        clime_buf_printf(out, "%s%s %.2f%s", first ? "" : " + ", names[i], gib(p->part[i]), remark(p, i));
        first = false;
    }
    if (p->host) clime_buf_printf(out, " (and %.2f of the host's)", gib(p->host));
    clime_buf_printf(out, " = %.2f GiB; %s has %.2f of %.2f GiB free", gib(p->need), p->device, gib(p->free_bytes),
                     gib(p->total_bytes));
}

void clime_memory_plan_table(const struct clime_memory_plan *p, struct clime_buf *out) {
    clime_buf_printf(out, "  micro-batches of up to %d tokens, recompute %s\n", p->max_rows,
                     clime_recompute_name(p->recompute));
    for (int i = 0; i < CLIME_MEM_N; i++)
        if (p->part[i]) clime_buf_printf(out, "  %-16s %9.3f GiB%s\n", names[i], gib(p->part[i]), remark(p, i));
    clime_buf_printf(out, "  %-16s %9.3f GiB of %.2f free, %.2f in all, on %s%s\n", "sum", gib(p->need),
                     gib(p->free_bytes), gib(p->total_bytes), p->device,
                     clime_memory_plan_fits(p) ? "" : ": DOES NOT FIT");
    if (p->host > p->host_weights)
        clime_buf_printf(out, "  %-16s %9.3f GiB: master weights and moments\n", "on the host",
                         gib(p->host - p->host_weights));
    if (p->host_weights)
        clime_buf_printf(out, "  %-16s %9.3f GiB: rank 0's whole weights\n", "on the host", gib(p->host_weights));
}
