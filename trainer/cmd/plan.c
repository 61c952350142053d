/* clime-train plan: memory and time of a run, from a configuration alone (trainer/plan/plan.h). Main thread; prints. */
#include "trainer/cmd/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/group/group.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/terminal.h"
#include "trainer/plan/plan.h"

struct plan_options {
    const char *dir;
    int kind, recompute;
    int64_t devices, hosts, tp, cp, ep, prompts, samples, prompt_len, answer_len, rows;
    bool offload;
};

static enum clime_err parse(int argc, char **argv, struct plan_options *o, struct clime_error *e) {
    const struct clime_opt table[] = {
        {"hf-checkpoint", CLIME_OPT_STRING, &o->dir, NULL, "DIR",
         "folder whose config.json says the model; no weights are read"},
        {"devices", CLIME_OPT_INT, &o->devices, "1", "N", "devices in all; each trains and serves", 1, 4096},
        {"hosts", CLIME_OPT_INT, &o->hosts, "1", "M", "hosts that they are in, as many in each", 1, 512},
        {"device-kind", CLIME_OPT_CHOICE, &o->kind, "h200", CLIME_DEVICE_KINDS, "whose measured rates are taken"},
        {"rollout-batch-size", CLIME_OPT_INT, &o->prompts, "32", "N", "prompts of a rollout", 1, 1 << 20},
        {"n-samples-per-prompt", CLIME_OPT_INT, &o->samples, "8", "N", "answers to each", 1, 1 << 16},
        {"prompt-len", CLIME_OPT_INT, &o->prompt_len, "256", "TOKENS", "of a prompt, in the mean", 1, 1 << 24},
        {"response-len", CLIME_OPT_INT, &o->answer_len, "1024", "TOKENS", "of an answer, in the mean", 1, 1 << 24},
        {"max-tokens-per-gpu", CLIME_OPT_INT, &o->rows, "8192", "TOKENS",
         "of a micro-batch; of a part of one with --context-parallel-size", 1, 1 << 24},
        {"recompute-granularity", CLIME_OPT_CHOICE, &o->recompute, "full", "none|selective|full",
         "what the backward pass computes again"},
        {"optimizer-cpu-offload", CLIME_OPT_BOOL, &o->offload, NULL, NULL, "master weights and moments in host memory"},
        {"rollout-num-gpus-per-engine", CLIME_OPT_INT, &o->tp, "0", "N", "devices of a server; 0 = those of a host", 0,
         8},
        {"context-parallel-size", CLIME_OPT_INT, &o->cp, "1", "C",
         "neighbouring ranks that share a micro-batch of C times --max-tokens-per-gpu; a power of two that divides "
         "--devices",
         1, CLIME_GROUP_MAX},
        {"expert-model-parallel-size", CLIME_OPT_INT, &o->ep, "0", "N",
         "neighbouring ranks that have all experts between them, where experts stay; 0 = the most that divide the "
         "ranks and the experts",
         0, CLIME_GROUP_MAX},
    };
    enum clime_err rc = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, NULL, 0,
                                            "clime-train plan --hf-checkpoint DIR --devices N [options]\nMemory and "
                                            "time of a run on devices that are not there, by measured rates.\n",
                                            e);
    if (rc) return rc;
    if (!o->dir) return clime_fail(e, CLIME_ERR_INPUT, "--hf-checkpoint is missing: a folder with a config.json");
    if (o->devices % o->hosts)
        return clime_fail(e, CLIME_ERR_INPUT, "--devices %" PRId64 " are not as many in each of %" PRId64 " hosts",
                          o->devices, o->hosts);
    int64_t each = o->devices / o->hosts;
    if (o->tp && (each % o->tp || o->tp > each))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--rollout-num-gpus-per-engine %" PRId64 " does not divide the %" PRId64 " devices of a host",
                          o->tp, each);
    if (o->cp & (o->cp - 1) || o->devices % o->cp)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--context-parallel-size %" PRId64 " is no power of two that divides --devices %" PRId64,
                          o->cp, o->devices);
    if (o->rows * o->cp > 1 << 24)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--max-tokens-per-gpu %" PRId64 " of %" PRId64 " ranks is over 2^24 tokens", o->rows, o->cp);
    return CLIME_OK;
}

static void print_model(const struct clime_model *m, const struct clime_run_plan *p) {
    const struct clime_model_work *w = &p->work;
    printf("model\n  %s: %.2fe9 parameters, %.2fe9 of them for a token", m->cfg.architecture, w->weights / 1e9,
           (w->active + w->head) / 1e9);
    if (w->E) printf("; %d of %d experts in %d of %d layers", w->k, w->E, w->expert_layers, w->layers);
    printf("\n  keys and values: %.1f KiB a token\n", w->kv_bytes / 1024);
}

static void print_training(const struct clime_plan_wish *wish, const struct clime_run_plan *p) {
    printf("training: %.0f micro-batches of %d tokens on ", p->micro_batches, wish->rows * wish->cp);
    printf(wish->cp > 1 ? "each %d neighbours that share them" : "each device", wish->cp);
    printf(", recompute %s; seconds of one, and of a rollout\n", clime_recompute_name(wish->recompute));
    printf("  %-16s %12s %9s %9s %9s %9s\n", "", "GiB", "compute", "gathers", "gradients", "all");
    for (int way = 0; way < CLIME_PLAN_WAYS; way++) {
        const struct clime_plan_training *t = &p->training[way];
        if (way == CLIME_PLAN_EXPERTS && !p->work.E) continue;
        if (!t->possible && wish->devices > 1)
            printf("  %-16s %12s\n", clime_plan_way_names[way], "as many experts on each rank: not with these");
        if (!t->possible) continue;
        if (way != CLIME_PLAN_REPLICATED && wish->devices == 1) continue;
        printf("  %-16s %12.1f %9.2f %9.2f %9.2f %9.1f%s", clime_plan_way_names[way], t->gib, t->compute_s, t->gather_s,
               t->exchange_s, t->step_s, t->fits ? "" : "  DOES NOT FIT");
        if (way == CLIME_PLAN_EXPERTS) printf("  --expert-model-parallel-size %d", p->experts_over);
        if (wish->cp > 1) printf("  --context-parallel-size %d", wish->cp);
        printf("\n");
    }
    printf("  %.1f GiB are free on a device", wish->device->memory_gib);
    double host = p->training[p->way < 0 ? CLIME_PLAN_SHARDED : p->way].host_gib;
    if (host > 0) printf("; %.0f of %.0f GiB on a host for what is offloaded", host, wish->device->host_gib);
    printf("; the optimizer takes %.2f s\n", p->optimizer_s);
}

static void print_serving(const struct clime_plan_wish *wish, const struct clime_run_plan *p) {
    printf("serving%s: %.0f answers of %.0f tokens after %.0f\n", p->way < 0 ? ", on devices without a trainer" : "",
           wish->prompts * wish->samples, wish->answer_len, wish->prompt_len);
    printf("  %d server%s of %d device%s, room for %.0f tokens of keys and values each", p->servers,
           p->servers > 1 ? "s" : "", p->tp, p->tp > 1 ? "s" : "", p->kv_tokens);
    if (p->running < 1)
        printf(": NOT ONE ANSWER FITS\n");
    else
        printf(", %.0f answers at a time: %.1f s\n", p->running, p->generate_s);
}

static bool are_ranks(int devices) {
    return devices <= CLIME_GROUP_MAX && !(devices & (devices - 1));
}

/* Prints options that would refuse the run at its start, or that this plan does not model. */
static bool print_refusals(const struct clime_config *c, const struct clime_plan_wish *wish,
                           const struct clime_run_plan *p) {
    const bool experts = wish->experts_over > 1 && !p->training[CLIME_PLAN_EXPERTS].possible;
    const bool positions = wish->prompt_len + wish->answer_len > c->max_pos;
    if (experts && !p->work.E)
        printf("limit: --expert-model-parallel-size %d: %s has no experts\n", wish->experts_over, c->architecture);
    else if (experts)
        printf("limit: --expert-model-parallel-size %d must divide the ranks and the %d experts\n", wish->experts_over,
               p->work.E);
    if (positions)
        printf("limit: a prompt and an answer of %.0f tokens are more than the model's %d positions\n",
               wish->prompt_len + wish->answer_len, c->max_pos);
    return experts || positions;
}

/* Prints what prevents the run. */
static void print_limits(const struct clime_plan_wish *wish, const struct clime_run_plan *p) {
    const struct clime_plan_training *sharded = &p->training[CLIME_PLAN_SHARDED];
    const struct clime_plan_training *stay = &p->training[CLIME_PLAN_EXPERTS];
    double links_s = sharded->gather_s - sharded->rows_s + sharded->exchange_s;
    if (wish->devices > CLIME_GROUP_MAX)
        printf("limit: a trainer has at most %d ranks, --devices %d is beyond it\n", CLIME_GROUP_MAX, wish->devices);
    else if (!are_ranks(wish->devices))
        printf("limit: a trainer's ranks are a power of two, %d are none\n", wish->devices);
    if (p->way < 0)
        printf("limit: no way of training that this version has fits these devices%s\n",
               wish->offload ? "" : "; --optimizer-cpu-offload takes master weights and moments off them");
    if (wish->devices > 1 && links_s > sharded->compute_s)
        printf(
            "limit: sharded, what goes over links (%.1f s a micro-batch) does not hide behind computing (%.1f s)%s\n",
            links_s, sharded->compute_s,
            stay->possible && stay->step_s < sharded->step_s ? "; experts can stay where they are, and rows travel "
                                                               "(--expert-model-parallel-size)"
                                                             : "");
    if (p->servers > 1)
        printf("limit: a trainer's own server is one over its host's devices; others are started by hand "
               "(--router-url)\n");
    if (wish->hosts > 1)
        printf("assumed: %.0f GB/s a device between hosts, which has not been measured\n", wish->device->network_gbs);
    if (p->work.E) printf("assumed: experts are chosen evenly, so a decode step reads all that its rows can hit\n");
}

int clime_plan_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct plan_options o = {0};
    struct clime_model *m = NULL;
    struct clime_run_plan p;
    enum clime_err rc = parse(argc, argv, &o, &e);
    const struct clime_model_options cpu = {.device = "cpu", .dtype = "bf16", .dev = {.n_threads = 1}};
    if (!rc) rc = clime_model_prepare(o.dir, &cpu, &m, &e);
    if (rc) {
        LOG_ERROR("plan: %s", e.msg);
        return 1;
    }
    const struct clime_plan_wish wish = {.device = &clime_device_rates[o.kind],
                                         .devices = (int)o.devices,
                                         .hosts = (int)o.hosts,
                                         .tp = (int)o.tp,
                                         .cp = (int)o.cp,
                                         .experts_over = (int)o.ep,
                                         .prompts = (double)o.prompts,
                                         .samples = (double)o.samples,
                                         .prompt_len = (double)o.prompt_len,
                                         .answer_len = (double)o.answer_len,
                                         .rows = (int)o.rows,
                                         .recompute = (enum clime_recompute)o.recompute,
                                         .offload = o.offload};
    clime_run_plan(m, &wish, &p);
    print_model(m, &p);
    print_training(&wish, &p);
    print_serving(&wish, &p);
    if (p.tokens_per_s > 0)
        printf("a rollout: %.1f s, %.0f answered tokens a device and second\n", p.generate_s + p.training[p.way].step_s,
               p.tokens_per_s);
    const bool refused = print_refusals(&m->cfg, &wish, &p);
    print_limits(&wish, &p);
    clime_model_close(m);
    if (clime_stdout_whole(&e)) {
        LOG_ERROR("plan: %s", e.msg);
        return 1;
    }
    return p.tokens_per_s > 0 && are_ranks(wish.devices) && !refused ? 0 : 1;
}
