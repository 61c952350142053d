/* Supervised training loop: sample order, steps, their record, and stopping by the mean of recent losses. Called by the
 * commands sft and dpo, main thread. Uses the learner's ordinary step with another loss. Invariant: a step's row is
 * written after the step, with its metrics line; a checkpoint after the rows before it. */
#include "trainer/run/sft.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/versions.h"

#define LOG_EVERY_US 2000000
#define LOSS_WINDOW 16

/* The mean loss of the last LOSS_WINDOW steps: one batch's loss is too noisy to stop by. */
struct recent_loss {
    double last[LOSS_WINDOW];
    int64_t n;
};

struct loop {
    struct clime_sft *s;
    FILE *metrics;
    int32_t *order;                    /* [units] of the current epoch */
    struct clime_sample *draw;         /* [global_batch_size * n_members] the batch, each draw its own group */
    const struct clime_sample **batch; /* [global_batch_size * n_members] pointers to draw */
    int64_t steps_per_epoch, total;    /* an epoch's incomplete last batch is left out */
    int64_t recorded;                  /* steps in the ledger at this start */
    int64_t began_us, told_us, tokens;
    struct recent_loss recent;
    bool done;
};

static bool reached(struct recent_loss *r, double loss, double target) {
    r->last[r->n++ % LOSS_WINDOW] = loss;
    double sum = 0;
    for (int i = 0; i < LOSS_WINDOW; i++) sum += r->last[i];
    return target > 0 && r->n >= LOSS_WINDOW && sum / LOSS_WINDOW <= target;
}

/* ---- a step ---- */

static enum clime_err write_record(struct loop *l, const struct clime_packing *packing,
                                   const struct clime_step_stats *stats, struct clime_error *e) {
    struct clime_sft *s = l->s;
    struct clime_step_result was = {0};
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "train", stats->step - 1, stats->step); /* each step is a rollout */
    clime_metrics_line_add(&m, "train/loss", stats->loss);
    clime_metrics_line_add(&m, "train/grad_norm", stats->grad_norm);
    clime_metrics_line_add(&m, "train/lr-pg_0", stats->lr);
    clime_metrics_line_int(&m, "train/tokens", stats->tokens);
    clime_metrics_line_int(&m, "train/trained_tokens", stats->trained_tokens);
    if (s->rl.o.learner.objective.preference) {
        clime_metrics_line_add(&m, "train/rewards/accuracies", stats->pairs_right);
        clime_metrics_line_add(&m, "train/rewards/chosen", stats->reward_chosen);
        clime_metrics_line_add(&m, "train/rewards/rejected", stats->reward_rejected);
        clime_metrics_line_add(&m, "train/rewards/margins", stats->reward_chosen - stats->reward_rejected);
    }
    if (stats->skipped) clime_metrics_line_int(&m, "train/skipped", 1);
    const char *line = clime_metrics_line_end(&m);
    enum clime_err rc = CLIME_OK;
    if (l->metrics) fprintf(l->metrics, "%s\n", line);
    const struct clime_chosen_step plan = {
        .step = stats->step, .rollout = stats->step - 1, .global_batch = s->global_batch_size, .packing = *packing};
    if (s->rl.ledger) rc = clime_step_result_get(clime_ledger_reader(s->rl.ledger), stats->step, &was, e);
    if (!rc && was.done) {
        rc = clime_rl_compare_step(&s->rl, &was, stats, e);
    } else if (!rc && s->rl.ledger) {
        rc = clime_step_record(s->rl.ledger, &plan, stats->loss, stats->grad_norm, line, line, e);
        if (!rc) clime_rl_tell_line(&s->rl, line);
    }
    clime_metrics_line_free(&m);
    return rc;
}

/* Converts a packing of units into one of samples. */
static void unfold(struct clime_packing *p, int n_units, int members) {
    if (members == 1) return;
    int32_t *sample = xcalloc((size_t)(n_units * members), sizeof *sample);
    for (int i = 0; i < n_units; i++)
        for (int m = 0; m < members; m++) sample[i * members + m] = p->sample[i] * members + m;
    for (int i = 0; i <= p->n_micro; i++) p->first[i] *= members;
    free(p->sample);
    p->sample = sample;
}

static enum clime_err run_step(struct loop *l, struct clime_step_stats *stats, struct clime_error *e) {
    struct clime_sft *s = l->s;
    int n = s->global_batch_size, members = s->n_members;
    int64_t at = s->rl.step % l->steps_per_epoch;
    if (at == 0 || l->tokens == 0)
        clime_mix_order(s->set.parts, s->set.n_parts, (uint64_t)s->seed, s->rl.step / l->steps_per_epoch, s->shuffle,
                        l->order);
    int32_t *lengths = xcalloc((size_t)n, sizeof *lengths);
    for (int i = 0; i < n; i++)
        for (int m = 0; m < members; m++) {
            struct clime_sample *x = &l->draw[i * members + m];
            *x = *s->set.samples[(int64_t)l->order[at * n + i] * members + m];
            x->group = i; /* a weighted source may repeat within a batch; its draws must not share a denominator */
            l->batch[i * members + m] = x;
            lengths[i] += x->n_prompt + x->n_response;
        }
    struct clime_pack_options po = {.max_tokens = s->rl.o.learner.max_tokens_per_gpu, .dynamic = true};
    struct clime_packing packing;
    clime_pack_make(lengths, n, &po, &packing);
    unfold(&packing, n, members);
    const struct clime_step_input in = {
        .samples = l->batch, .n = n * members, .packing = &packing, .version = -1, .global_batch = n};
    enum clime_err rc = clime_learner_step(s->rl.learner, &in, stats, e);
    if (!rc) rc = write_record(l, &packing, stats, e);
    if (!rc) s->rl.step = s->rl.rollouts_done = stats->step;
    clime_pack_free(&packing);
    free(lengths);
    return rc;
}

static void tell(struct loop *l, const struct clime_step_stats *stats) {
    struct clime_sft *s = l->s;
    int64_t now = clime_now_us();
    l->tokens += stats->tokens;
    if (stats->skipped)
        LOG_WARN("step %" PRId64 " is skipped: its gradient is not finite (loss %g)", stats->step, stats->loss);
    if (stats->skipped && s->rl.ledger)
        clime_event(s->rl.ledger, s->rl.run.incarnation, "skip", "step %" PRId64 ": the gradient was not finite",
                    stats->step);
    if (now - l->told_us < LOG_EVERY_US && !l->done) return;
    l->told_us = now;
    clime_progress_line(&s->rl.progress, "step %" PRId64 "/%" PRId64 "  loss %.4f  grad_norm %.3f  lr %.2e  %.0f tok/s",
                        stats->step, l->total, stats->loss, stats->grad_norm, stats->lr,
                        (double)l->tokens * 1e6 / (double)(now - l->began_us));
}

static enum clime_err save_if_due(struct loop *l, struct clime_error *e) {
    struct clime_rl *rl = &l->s->rl;
    if (!rl->ledger || (!l->done && rl->step % rl->o.save_interval)) return CLIME_OK;
    enum clime_err rc = clime_rl_record_version(rl, e);
    return rc ? rc : clime_rl_checkpoint(rl, e);
}

/* Called after each step and before the first. A recorded line is only logged, if its step was repeated. */
static enum clime_err evaluate_if_due(struct loop *l, bool again, struct clime_error *e) {
    struct clime_rl *rl = &l->s->rl;
    bool due = false;
    char *line = NULL;
    if (!l->s->evaluates) return CLIME_OK;
    rl->num_rollout = l->done ? rl->step : l->total; /* evaluates the last step */
    enum clime_err rc = clime_rl_evaluation_due(rl, &due, e);
    if (!rc && again) rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "eval", rl->step, &line, e);
    if (line) clime_metrics_log_append(rl->log, line);
    free(line);
    if (rc || !due || (rc = clime_rl_publish(rl, e)) || (!rl->client && (rc = clime_rl_open_client(rl, e)))) return rc;
    return clime_rl_evaluate(rl, e);
}

/* ---- the run ---- */

static enum clime_err open_folder(struct clime_sft *s, const char *defaults, struct clime_error *e) {
    struct clime_rl *rl = &s->rl;
    struct clime_checksum c;
    clime_checksum_init(&c);
    for (int i = 0; i < s->set.n; i++) {
        const struct clime_sample *x = s->set.samples[i];
        const int32_t n[] = {x->n_prompt, x->n_response};
        clime_checksum_add(&c, n, sizeof n);
        clime_checksum_add(&c, x->ids, (size_t)(x->n_prompt + x->n_response) * sizeof *x->ids);
        clime_checksum_add(&c, x->mask, (size_t)x->n_response);
    }
    clime_mix_checksum(s->set.parts, s->set.n_parts, &c);
    uint64_t samples = clime_checksum_done(&c);
    rl->checkpoint_dir = xasprintf("%s/checkpoints", rl->o.run);
    rl->o.num_steps_per_rollout = 1;
    enum clime_err rc = clime_rl_lock(rl, e);
    if (!rc) rc = clime_rl_make_checkpoint_dir(rl, e);
    if (!rc) rc = clime_rl_open_record(rl, defaults, e);
    return rc ? rc : clime_rl_record_data(rl, &samples, e);
}

/* The evaluation's options replace the run's while it loads; they do not affect the weights. */
static enum clime_err load_evaluation(struct clime_rl *rl, struct clime_error *e) {
    char *record = rl->o.options_json;
    rl->o.options_json = xstrdup("{}");
    rl->o.evaluate = true;
    enum clime_err rc = clime_rl_load_evaluation(rl, e);
    rl->o.evaluate = false; /* servers get the trained weights */
    free(rl->o.options_json);
    rl->o.options_json = record;
    return rc;
}

enum clime_err clime_sft_open(struct clime_sft *s, const char *defaults, struct clime_error *e) {
    struct clime_rl *rl = &s->rl;
    enum clime_err rc = CLIME_OK;
    clime_progress_begin(&rl->progress);
    if (s->evaluates) rc = load_evaluation(rl, e);
    if (!rc && rl->o.run) rc = open_folder(s, defaults, e);
    if (!rc && s->evaluates) rc = clime_rl_open_servers(rl, e);
    rl->o.learner.beside_servers = s->evaluates;
    if (!rc) rc = clime_learner_prepare(&rl->o.learner, &rl->learner, e);
    if (!rc && rl->fleet && clime_learner_model(rl->learner)->ops->own_memory) rc = clime_fleet_wait_up(rl->fleet, e);
    if (!rc) rc = clime_learner_start(rl->learner, e);
    return rc || !rl->ledger ? rc : clime_rl_record_models(rl, e);
}

/* Reads the losses before the checkpoint: they may have reached the target already. */
static enum clime_err recall_losses(struct loop *l, struct clime_error *e) {
    int64_t first = l->s->rl.step > LOSS_WINDOW ? l->s->rl.step - LOSS_WINDOW : 0;
    enum clime_err rc = CLIME_OK;
    l->recent.n = first;
    for (int64_t step = first + 1; step <= l->s->rl.step && !rc; step++) {
        struct clime_step_result was;
        rc = clime_step_result_get(clime_ledger_reader(l->s->rl.ledger), step, &was, e);
        l->done = reached(&l->recent, was.loss, l->s->target_loss);
    }
    return rc;
}

static enum clime_err recover(struct loop *l, struct clime_error *e) {
    struct clime_rl *rl = &l->s->rl;
    char *path = xasprintf("%s/metrics.jsonl", rl->o.run);
    enum clime_err rc = clime_steps_last(clime_ledger_reader(rl->ledger), &l->recorded, e);
    if (!rc) rc = clime_rl_load_checkpoint(rl, INT64_MAX, e);
    if (!rc) rc = clime_metrics_log_open(path, NULL, clime_ledger_reader(rl->ledger), rl->step, &rl->log, e);
    free(path);
    if (!rc) rc = clime_rl_record_version(rl, e); /* compares the initial weights */
    if (!rc) rc = recall_losses(l, e);
    rl->rollouts_done = rl->step;
    if (!rc && rl->step > l->total)
        rc = clime_fail(e, CLIME_ERR_INPUT, "the run has done %" PRId64 " steps, this command asks for %" PRId64,
                        rl->step, l->total);
    if (!rc && l->recorded)
        clime_event(rl->ledger, rl->run.incarnation, "recover",
                    "from %s of step %" PRId64 "; %" PRId64 " recorded steps run again",
                    rl->step ? "the checkpoint" : "the initial weights", rl->step, l->recorded - rl->step);
    return rc;
}

static enum clime_err run_steps(struct loop *l, struct clime_error *e) {
    struct clime_sft *s = l->s;
    enum clime_err rc = evaluate_if_due(l, false, e);
    while (s->rl.step < l->total && !l->done && !rc) {
        struct clime_step_stats stats;
        if ((rc = run_step(l, &stats, e))) break;
        l->done = reached(&l->recent, stats.loss, s->target_loss) || s->rl.step == l->total;
        tell(l, &stats);
        if (l->done && stats.updates == 0)
            rc = clime_fail(e, CLIME_ERR_INPUT,
                            "no step changed the weights: of %" PRId64 " none had a finite gradient", s->rl.step);
        if (!rc) rc = save_if_due(l, e);
        if (!rc) rc = evaluate_if_due(l, s->rl.step <= l->recorded, e);
    }
    return rc;
}

enum clime_err clime_sft_train(struct clime_sft *s, struct clime_error *e) {
    struct loop l = {.s = s, .began_us = clime_now_us()};
    enum clime_err rc = CLIME_OK;
    l.told_us = l.began_us;
    signal(SIGPIPE, SIG_IGN); /* the reader of the progress may exit (| head); training continues, as in rl */
    int n_units = s->set.n / s->n_members;
    l.steps_per_epoch = n_units / s->global_batch_size;
    l.total = l.steps_per_epoch * s->num_epoch;
    l.order = xcalloc((size_t)n_units, sizeof *l.order);
    l.draw = xcalloc((size_t)(s->global_batch_size * s->n_members), sizeof *l.draw);
    l.batch = xcalloc((size_t)(s->global_batch_size * s->n_members), sizeof(struct clime_sample *));
    l.metrics = s->metrics ? fopen(s->metrics, "w") : NULL;
    if (s->metrics && !l.metrics) rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", s->metrics, strerror(errno));
    if (!rc && s->rl.ledger) rc = recover(&l, e);
    if (!rc && s->rl.ledger) clime_progress_say_at_interrupt();
    if (!rc) rc = run_steps(&l, e);
    if (l.metrics && fclose(l.metrics) && !rc)
        rc = clime_fail(e, CLIME_ERR_IO, "writing %s: %s", s->metrics, strerror(errno));
    if (!rc && s->rl.ledger) clime_event(s->rl.ledger, s->rl.run.incarnation, "end", "step %" PRId64, s->rl.step);
    free(l.batch);
    free(l.draw);
    free(l.order);
    return rc;
}
