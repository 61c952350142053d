/* The loop of --async: generates rollouts while the steps of an earlier one run. Called by rl.c, main thread.
 *
 * One rollout ahead: weights are pushed between two rollouts, so every sample has one version, a function of the
 * rollout's number. Such a run is as reproducible as a synchronous one: a restart first pushes that version to the
 * servers (recover.c).
 *
 * --fully-async: one thread generates up to --max-rollouts-ahead rollouts ahead of training from one pool of groups
 * (rollout.c); they are trained on in order. New weights are pushed at once. The generating thread holds meanwhile, but
 * the servers do not: samples in flight continue under the new weights (--pause-generation-mode). An evaluation needs
 * idle servers, so the rollout is then paused, like a --partial-rollout cut. The version of each token depends on
 * timing and is recorded.
 *
 * Invariant: between clime_ahead_start and _take or _pause this file touches client and fleet only while holding.
 */
#include <stdlib.h>

#include "common/clock.h"
#include "trainer/run/run.h"

int64_t clime_rl_version_of(const struct clime_rl *rl, int64_t rollout) {
    int64_t every = rl->o.update_weights_interval, k = rl->o.num_steps_per_rollout, before = rollout - 1;
    if (rl->o.fully_async) return (rollout - rollout % every) * k;
    if (!rl->o.async || rollout == 0) return rollout * k;
    return (before - before % every) * k; /* it was begun when `before` had been generated */
}

/* The last rollout that may be generated during training on `trained`. */
static int64_t last_ahead(const struct clime_rl *rl, int64_t trained) {
    int64_t last = trained + rl->o.max_rollouts_ahead;
    return last < rl->num_rollout ? last : rl->num_rollout - 1;
}

/* next: the rollout to train on after the current one. */
static enum clime_err start(struct clime_rl *rl, int64_t next, struct clime_error *e) {
    struct clime_rollout_context c = clime_rl_rollout_context(rl);
    struct clime_ahead_range range = {.id = next, .end = next + 1, .last = next};
    if (rl->o.fully_async)
        range = (struct clime_ahead_range){
            .id = next + rl->ahead.n_ready, .end = rl->num_rollout, .last = last_ahead(rl, next - 1)};
    if (range.id >= rl->num_rollout) return CLIME_OK; /* all are made */
    char *path = xasprintf("%s/ledger.db", rl->o.run);
    enum clime_err rc = clime_ahead_start(&rl->ahead, &c, path, range, rl->published, e);
    free(path);
    return rc;
}

/* Call when nothing is being generated. */
static enum clime_err publish_and_evaluate(struct clime_rl *rl, int64_t next, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    if (clime_rl_version_of(rl, next) > rl->published) rc = clime_rl_publish(rl, e);
    return !rc && rl->published == rl->step ? clime_rl_evaluate_if_due(rl, e) : rc;
}

static enum clime_err take(struct clime_rl *rl, struct clime_rollout *r, struct clime_error *e) {
    struct clime_ahead *g = &rl->ahead;
    int64_t t0 = clime_now_us();
    enum clime_err rc = CLIME_OK;
    if (!g->running && g->n_ready == 0) { /* the first rollout, also after a restart */
        if ((rc = publish_and_evaluate(rl, rl->rollouts_done, e))) return rc;
        rc = start(rl, rl->rollouts_done, e);
    }
    clime_progress_live(&rl->progress, "rollout %lld is being generated", (long long)rl->rollouts_done);
    if (!rc) rc = clime_ahead_take(g, r, e);
    rl->time.wait_us = clime_now_us() - t0;
    return rc;
}

/* --fully-async: pushes the new weights at once. */
static enum clime_err push_in_flight(struct clime_rl *rl, struct clime_error *e) {
    int64_t next = rl->rollouts_done;
    bool evaluate;
    if (next >= rl->num_rollout || clime_rl_version_of(rl, next) <= rl->published) return CLIME_OK;
    enum clime_err rc = clime_rl_evaluation_due(rl, &evaluate, e);
    if (!rc && !evaluate && clime_ahead_hold(&rl->ahead, rl->step)) {
        rc = clime_rl_publish(rl, e);
        clime_ahead_release(&rl->ahead);
        return rc;
    }
    if (!rc) rc = clime_ahead_pause(&rl->ahead, e);
    if (!rc) rc = publish_and_evaluate(rl, next, e);
    if (!rc) rc = start(rl, next, e);
    return rc;
}

/* Runs the steps while later rollouts are generated. */
static enum clime_err train(struct clime_rl *rl, const struct clime_rollout *r, struct clime_step_stats *last,
                            struct clime_error *e) {
    struct clime_chosen_step *plans;
    int64_t t0 = clime_now_us();
    enum clime_err rc = clime_rl_plan_steps(rl, r, &plans, e); /* first: the rest may be the next rollout's */
    if (rc) return rc;
    if (rl->o.fully_async)
        clime_ahead_want(&rl->ahead, last_ahead(rl, r->id));
    else
        rc = start(rl, r->id + 1, e);
    if (!rc) rc = clime_rl_record_end(rl, e); /* the steps are about to change the weights */
    if (!rc) rc = clime_rl_run_steps(rl, plans, last, e);
    clime_rl_plans_free(plans, (int)rl->o.num_steps_per_rollout);
    rl->time.train_us = clime_now_us() - t0;
    if (!rc) rc = clime_rl_record_begin(rl, e);
    return rc;
}

enum clime_err clime_rl_async_rollout(struct clime_rl *rl, struct clime_error *e) {
    struct clime_rollout r = {0};
    struct clime_step_stats last = {0};
    int64_t t0 = clime_now_us();
    rl->time.update_us = 0;
    enum clime_err rc = take(rl, &r, e);
    if (rc) return rc;
    if (!rl->o.fully_async) rc = publish_and_evaluate(rl, r.id + 1, e);
    if (!rc) rc = train(rl, &r, &last, e);
    if (!rc && rl->o.fully_async) rc = push_in_flight(rl, e);
    if (!rc) rc = clime_rl_account(rl, &r, &last, t0, e);
    clime_rollout_free(&r);
    return rc;
}
