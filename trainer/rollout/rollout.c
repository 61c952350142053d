/* Rollout loop: submits groups and assembles rollouts from complete ones. Called by rl.c on the main thread, or by
 * trainer/rollout/ahead.c on its thread; waits happen in the client.
 *
 * Owns the groups' samples. The ledger is written first: groups and pending samples before any request, then as in
 * flight.c. So the same functions start a rollout and resume one after a crash.
 *
 * Consecutive rollouts (--fully-async) share one pool of groups: those a full rollout does not use stay in flight for
 * the next. Invariant: a token's staleness is measured against the rollout its group ends in, when the group is
 * complete and again when the next rollout begins, so no token above the bound is accepted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/os/waits.h"
#include "trainer/ledger/events.h"
#include "trainer/plugin/hooks.h"
#include "trainer/rollout/rollout_int.h"

#define ABORT_AGAIN_US 1000000 /* repeats an abort for requests that were in transit */
#define LOOK_US 5000           /* polling interval of another thread's orders */
#define MOST_FILTERED 100      /* times a rollout's groups that the filter may drop before the run ends */

static uint64_t seed_of(uint64_t run_seed, int64_t rollout, int64_t group, int64_t member) {
    const uint64_t words[4] = {run_seed, (uint64_t)rollout, (uint64_t)group, (uint64_t)member};
    return clime_hash64(words, 4);
}

/* ---- groups ---- */

static void count(struct clime_rollouts *r, struct clime_slot *s) {
    s->counted = true;
    r->n_counted++;
    r->reward_sum += clime_sample_reward(s->sample);
}

static bool all_old(const struct clime_rollouts *r, int g) {
    for (int i = g * r->members; i < (g + 1) * r->members; i++) {
        const struct clime_sample *s = r->slots[i].sample;
        if (s->n_versions && s->versions[s->n_versions - 1].version == r->now.version) return false;
    }
    return true;
}

/* Reports group g to the chooser once all its members are finished. */
static enum clime_err finish_group(struct clime_rollouts *r, int g, struct clime_error *e) {
    const struct clime_hook *hook = r->c->o->filter_hook;
    struct clime_verdict v = {.keep = true};
    enum clime_err rc = CLIME_OK;
    struct clime_sample **members = xcalloc((size_t)r->members, sizeof *members);
    bool complete = !r->chooser.groups[g].ended;
    for (int m = 0; m < r->members; m++) {
        complete = complete && r->slots[g * r->members + m].counted;
        members[m] = r->slots[g * r->members + m].sample;
    }
    if (complete && r->c->o->learner.objective.mask_offpolicy && all_old(r, g))
        v = (struct clime_verdict){.reason = "offpolicy"}; /* no token could be trained on */
    else if (complete && hook)
        rc = clime_hook_filter(hook, members, r->members, &v, e);
    else if (complete && r->filter)
        r->filter(members, r->members, &v);
    if (complete) clime_chooser_finish(&r->chooser, g, &v);
    free(members);
    return rc;
}

void clime_rollouts_failed(struct clime_rollouts *r, int slot) {
    int g = slot / r->members;
    r->slots[slot].failed = true;
    if (!r->chooser.groups[g].ended) clime_chooser_fail(&r->chooser, g);
}

/* Whether a token will exceed --max-staleness when the rollout is trained on. */
static bool too_old(const struct clime_rollouts *r, const struct clime_sample *s) {
    int64_t limit = r->c->o->max_staleness, trained_at = r->now.id * r->c->o->num_steps_per_rollout;
    return limit >= 0 && s->n_versions && trained_at - s->versions[0].version > limit;
}

/* Resets the sample to pending with the dataset's prompt, which an environment may have replaced. */
static enum clime_err begin_again(struct clime_rollouts *r, struct clime_sample *s, struct clime_error *e) {
    const struct clime_prompt *p = clime_dataset_at(r->c->data, s->group, NULL);
    clime_sample_restart(s);
    if (r->c->o->environment) {
        s->n_prompt = p->n_ids;
        s->ids = xrealloc(s->ids, (size_t)p->n_ids * sizeof *s->ids);
        memcpy(s->ids, p->ids, (size_t)p->n_ids * sizeof *s->ids);
    }
    return clime_samples_reset(r->c->ledger, &s, 1, e);
}

/* Samples a finished sample again. */
static enum clime_err renew(struct clime_rollouts *r, int slot, struct clime_error *e) {
    struct clime_slot *s = &r->slots[slot];
    int g = slot / r->members;
    r->now.n_reset++;
    r->n_counted--;
    r->reward_sum -= clime_sample_reward(s->sample);
    s->counted = s->submitted = false;
    s->gathering = 0;
    if (slot < r->next) r->next = slot;
    if (r->chooser.groups[g].ended) clime_chooser_reopen(&r->chooser, g);
    return begin_again(r, s->sample, e);
}

/* Samples the too old finished samples of group g again; with --group-rm all members, once all are finished. */
static enum clime_err renew_old(struct clime_rollouts *r, int g, struct clime_error *e) {
    bool old = false, whole = true, together = r->c->o->group_rm;
    enum clime_err rc = CLIME_OK;
    for (int i = g * r->members; i < (g + 1) * r->members; i++) {
        old = old || (r->slots[i].counted && too_old(r, r->slots[i].sample));
        whole = whole && r->slots[i].counted;
    }
    if (!old || (together && !whole)) return CLIME_OK;
    for (int i = g * r->members; i < (g + 1) * r->members && !rc; i++)
        if (r->slots[i].counted && (together || too_old(r, r->slots[i].sample))) rc = renew(r, i, e);
    return rc;
}

enum clime_err clime_rollouts_finished(struct clime_rollouts *r, int slot, struct clime_error *e) {
    int g = slot / r->members;
    count(r, &r->slots[slot]);
    enum clime_err rc = renew_old(r, g, e);
    return rc ? rc : finish_group(r, g, e);
}

/* Whether the recorded state of a sample is unusable. */
static bool outdated(const struct clime_rollouts *r, const struct clime_sample *s) {
    bool current = s->n_versions == 1 && s->versions[0].version == r->now.version;
    return r->c->o->partial_rollout ? too_old(r, s) : !current;
}

/* Resumes group g from the ledger: keeps finished samples, and with --partial-rollout the tokens of the others;
 * everything else, and what is too old, is sampled again. */
static enum clime_err admit(struct clime_rollouts *r, int g, struct clime_error *e) {
    bool partial = r->c->o->partial_rollout;
    bool whole = true; /* all members are usable; else --group-rm samples all again */
    enum clime_err rc = CLIME_OK;
    for (int i = g * r->members; i < (g + 1) * r->members; i++)
        whole = whole && clime_sample_finished(r->slots[i].sample) && !outdated(r, r->slots[i].sample);
    for (int i = g * r->members; i < (g + 1) * r->members && !rc; i++) {
        struct clime_sample *s = r->slots[i].sample;
        if (r->c->o->group_rm && !whole && clime_sample_finished(s)) rc = begin_again(r, s, e);
        bool old = outdated(r, s);
        if (s->status == CLIME_SAMPLE_FAILED) {
            clime_rollouts_failed(r, i);
        } else if (clime_sample_finished(s) && !old) {
            count(r, &r->slots[i]);
        } else if (s->n_response > 0 && (old || !partial)) {
            r->now.n_reset += partial;
            rc = begin_again(r, s, e);
        }
    }
    return rc ? rc : finish_group(r, g, e);
}

static enum clime_err add_groups(struct clime_rollouts *r, struct clime_sample **samples, int n,
                                 struct clime_error *e) {
    int first = r->chooser.n;
    enum clime_err rc = CLIME_OK;
    r->slots = xrealloc(r->slots, (size_t)(r->n_slots + n * r->members + 1) * sizeof *r->slots);
    for (int i = 0; i < n * r->members; i++) r->slots[r->n_slots++] = (struct clime_slot){.sample = samples[i]};
    clime_chooser_add(&r->chooser, n);
    for (int g = first; g < first + n; g++) /* a rollout's group numbers have gaps only for dropped groups */
        r->chooser.groups[g].skipped = (int)(samples[(g - first) * r->members]->group - r->first_group) - g;
    for (int g = first; g < first + n && !rc; g++) rc = admit(r, g, e);
    return rc;
}

static struct clime_sample *make_member(const struct clime_rollouts *r, int64_t group, int member,
                                        const struct clime_prompt *p) {
    return clime_sample_pending(r->now.id, group, member, seed_of(r->c->run->seed, r->now.id, group, member), p->ids,
                                p->n_ids, p->label, p->metadata);
}

/* Opens the next n groups of the dataset. */
static enum clime_err open_groups(struct clime_rollouts *r, int n, struct clime_error *e) {
    int64_t next;
    enum clime_err rc = clime_groups_next(r->c->db, &next, e);
    if (rc || n == 0) return rc;
    struct clime_group *groups = xcalloc((size_t)n, sizeof *groups);
    struct clime_sample **members = xcalloc((size_t)n * (size_t)r->members, sizeof *members);
    if (r->first_group < 0) r->first_group = next;
    for (int i = 0; i < n; i++) {
        struct clime_group *g = &groups[i];
        const struct clime_prompt *p = clime_dataset_at(r->c->data, next + i, &g->epoch);
        g->id = next + i;
        g->rollout = r->now.id;
        g->line = p->line;
        g->source = r->c->data->n_parts > 1 ? r->c->data->names[p->source] : NULL;
        g->prompt = p->text;
        g->label = p->label;
        g->metadata = p->metadata;
        g->members = members + (size_t)i * (size_t)r->members;
        g->n = r->members;
        for (int m = 0; m < r->members; m++) g->members[m] = make_member(r, g->id, m, p);
    }
    rc = clime_groups_open(r->c->ledger, groups, n, e);
    if (rc)
        for (int i = 0; i < n * r->members; i++) clime_sample_free(members[i]);
    else
        rc = add_groups(r, members, n, e);
    free(members);
    free(groups);
    return rc;
}

/* Adds n groups: leftovers first, then from the dataset. */
static enum clime_err more_groups(struct clime_rollouts *r, int n, struct clime_error *e) {
    struct clime_sample **samples;
    int taken = clime_leftovers_take(&r->leftovers, n, &samples);
    enum clime_err rc = taken ? add_groups(r, samples, taken, e) : CLIME_OK;
    return rc ? rc : open_groups(r, n - taken, e);
}

/* Drops group g in the ledger. Too many dropped groups end the run, which would never finish. */
static enum clime_err drop_group(struct clime_rollouts *r, int g, struct clime_error *e) {
    const struct clime_chosen *d = &r->chooser.groups[g];
    const char *reason = d->verdict.reason;
    int64_t id = r->slots[g * r->members].sample->group, limit = r->c->o->rollout_batch_size;
    for (int i = g * r->members; i < (g + 1) * r->members; i++) {
        if (d->failed && r->slots[i].failed) reason = r->slots[i].sample->error;
        if (r->slots[i].counted) {
            r->n_counted--;
            r->reward_sum -= clime_sample_reward(r->slots[i].sample);
        }
    }
    if (d->failed) clime_event(r->c->ledger, r->c->run->incarnation, "drop", "group %" PRId64 ": %s", id, reason);
    enum clime_err rc =
        clime_group_drop(r->c->ledger, id, r->now.id, d->failed ? CLIME_DROP_FAILED : CLIME_DROP_FILTER, reason, e);
    if (rc) return rc;
    if (d->failed && ++r->n_failed > limit)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%d groups of rollout %" PRId64 " failed, the last one: %.400s",
                          r->n_failed, r->now.id, reason);
    if (!d->failed && ++r->n_filtered > MOST_FILTERED * limit)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "the filter dropped %d groups of rollout %" PRId64
                          ", the last one for %s: there is nothing to "
                          "learn from these prompts",
                          r->n_filtered, r->now.id, reason);
    return CLIME_OK;
}

/* Makes all possible decisions and adds groups if too few are left. */
static enum clime_err settle(struct clime_rollouts *r, struct clime_error *e) {
    for (;;) {
        enum clime_err rc = CLIME_OK;
        for (int g; !rc && (g = clime_chooser_decide(&r->chooser)) >= 0;)
            if (clime_rollouts_dropped(r, g)) rc = drop_group(r, g, e);
        int n = rc ? 0 : clime_chooser_missing(&r->chooser);
        if (n) rc = more_groups(r, n, e);
        if (rc || n == 0) return rc;
    }
}

/* Resumes this rollout from the ledger and, with --partial-rollout, earlier ones. */
static enum clime_err resume(struct clime_rollouts *r, const int64_t *held, int n_held, struct clime_error *e) {
    struct clime_db *db = r->c->db;
    const struct clime_rl_options *o = r->c->o;
    struct clime_drop_count *drops;
    struct clime_sample **samples;
    int n;
    enum clime_err rc = clime_groups_dropped(db, r->now.id, &drops, &n, e);
    if (!rc) rc = clime_groups_first(db, r->now.id, &r->first_group, e);
    for (int i = 0; i < n; i++) {
        if (drops[i].cause == CLIME_DROP_FAILED) r->n_failed += drops[i].n;
        if (drops[i].cause == CLIME_DROP_FILTER) r->n_filtered += drops[i].n;
    }
    free(drops);
    const struct clime_leftovers_order left = {.name = o->partial_rollout ? o->buffer_filter : "pop_first",
                                               .hook = o->partial_rollout ? o->buffer_hook : NULL,
                                               .rollout = r->now.id,
                                               .version = r->now.version,
                                               .held = held,
                                               .n_held = n_held};
    if (!rc) rc = clime_leftovers_load(db, &left, r->members, &r->leftovers, e);
    if (rc || o->partial_rollout) return rc;
    /* all were submitted in this order before; the result must not depend on the crash */
    n = clime_leftovers_take(&r->leftovers, r->leftovers.n, &samples);
    return add_groups(r, samples, n, e);
}

/* ---- generation ---- */

static void show(struct clime_rollouts *r) {
    double seconds = (double)(clime_now_us() - r->t0) / 1e6;
    long long samples = (long long)r->c->o->rollout_batch_size * r->members;
    if (!r->n_counted) /* samples return only when complete */
        clime_progress_live(r->c->progress, "rollout %" PRId64 ": %d samples under way, none whole yet  (%.0f s)",
                            r->now.id, r->n_flight, seconds);
    else
        clime_progress_live(r->c->progress, "rollout %" PRId64 ": %d of %lld samples  %.0f tokens/s  reward %.3f",
                            r->now.id, r->n_counted, samples,
                            (double)r->now.n_tokens / (seconds > 0.001 ? seconds : 0.001),
                            r->reward_sum / r->n_counted);
}

/* Executes orders of the controlling thread. The version may have changed on return. */
static enum clime_err obey(struct clime_rollouts *r, bool *pause, struct clime_error *e) {
    enum clime_rollout_order order =
        r->c->control ? clime_rollout_control_look(r->c->control, &r->now.version) : CLIME_ROLLOUT_GO;
    *pause = order == CLIME_ROLLOUT_PAUSE;
    if (order != CLIME_ROLLOUT_CANCEL) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_ABORTED, "rollout %" PRId64 " was given up", r->now.id);
}

/* Sets the number of leased samples, which follows the number of servers. */
static void set_window(struct clime_rollouts *r) {
    r->window = 2 * clime_client_most(r->c->client);
    if (r->c->o->group_rm && r->window < r->members) r->window = r->members; /* members wait for each other */
}

/* Sets the number of groups: for this rollout and any later one wanted now. */
static void want(struct clime_rollouts *r) {
    int64_t n = r->c->control ? atomic_load(&r->c->control->last) - r->now.id + 1 : 1;
    r->chooser.wanted = (int)(n > 0 ? n : 0) * r->chooser.target;
}

/* Begins the next rollout with the last one's remaining groups. */
static enum clime_err begin_next(struct clime_rollouts *r, int64_t id, struct clime_error *e) {
    int *place = xcalloc((size_t)r->chooser.n + 1, sizeof *place), n = r->chooser.n;
    enum clime_err rc = CLIME_OK;
    clime_chooser_next(&r->chooser, place);
    clime_flight_move(r, place);
    for (int i = 0; i < n * r->members; i++)
        if (place[i / r->members] >= 0)
            r->slots[place[i / r->members] * r->members + i % r->members] = r->slots[i];
        else
            clime_sample_free(r->slots[i].sample);
    free(place);
    r->n_slots = r->chooser.n * r->members;
    r->n_counted = r->n_failed = r->n_filtered = r->next = 0;
    r->reward_sum = 0;
    for (int i = 0; i < r->n_slots; i++)
        if (r->slots[i].counted) count(r, &r->slots[i]);
    r->now.id = id;
    r->first_group = -1;
    for (int g = 0; g < r->chooser.n && !rc; g++) rc = renew_old(r, g, e);
    return rc;
}

enum clime_err clime_rollouts_fill(struct clime_rollouts *r, int64_t id, bool *paused, struct clime_error *e) {
    int64_t tick = clime_now_us() + CLIME_ROLLOUT_TICK_US;
    struct clime_wait wait = {0};
    enum clime_err rc = id == r->now.id ? CLIME_OK : begin_next(r, id, e);
    *paused = false;
    r->back_us = clime_now_us();
    clime_wait_begin(&wait, "the samples of a rollout", 0, "rollout %" PRId64, id);
    while (!rc) {
        want(r);
        if ((rc = settle(r, e)) || (clime_chooser_full(&r->chooser) && r->chooser.wanted > 0)) break;
        if ((rc = obey(r, paused, e)) || *paused || (rc = clime_flight_submit(r, e))) break;
        int64_t now = clime_now_us(), until = r->c->control && now + LOOK_US < tick ? now + LOOK_US : tick;
        bool idle = r->n_flight == 0;
        if ((rc = clime_flight_collect(r, until, e))) break;
        int64_t then = clime_now_us();
        if (idle) r->idle_us += then - now;
        if (idle) r->back_us = then;
        if (then >= tick) {
            if ((rc = clime_fleet_poll(r->c->fleet, e)) || (rc = clime_flight_renew_expired(r, e))) break;
            clime_client_limit(r->c->client, clime_fleet_room(r->c->fleet));
            set_window(r);
            tick = then + CLIME_ROLLOUT_TICK_US;
            clime_wait_on(&wait, "rollout %" PRId64 " has %d of %lld, %d are under way, the last came back %.1f s ago",
                          id, r->n_counted, (long long)r->c->o->rollout_batch_size * r->members, r->n_flight,
                          (double)(then - r->back_us) / 1e6);
            clime_metric_set(r->in_flight, r->n_flight);
            clime_alarms_see(r->c->alarms, CLIME_ALARM_STALLED, (double)(then - r->back_us) / 1e6, NULL, NULL);
        }
        show(r);
    }
    clime_wait_end(&wait);
    r->now.paused = *paused;
    return rc;
}

enum clime_err clime_rollouts_stop(struct clime_rollouts *r, struct clime_error *e) {
    char prefix[64];
    int64_t again = 0;
    bool pause; /* a pause is in progress */
    enum clime_err rc = CLIME_OK;
    atomic_store(&r->stop, true);
    snprintf(prefix, sizeof prefix, "%s/", r->c->run->start);
    while (!rc && r->n_flight > 0 && !(rc = obey(r, &pause, e))) {
        if (clime_now_us() >= again) {
            clime_fleet_abort(r->c->fleet, prefix);
            again = clime_now_us() + ABORT_AGAIN_US;
        }
        rc = clime_flight_collect(r, clime_now_us() + CLIME_ROLLOUT_TICK_US, e);
        if (!rc && clime_fleet_poll(r->c->fleet, e)) LOG_WARN("%s", e->msg);
        clime_progress_live(r->c->progress, "rollout %" PRId64 ": waiting for %d requests that were stopped", r->now.id,
                            r->n_flight);
    }
    return rc;
}

/* ---- the result ---- */

static int by_order(const void *a, const void *b) {
    return clime_sample_order(*(struct clime_sample *const *)a, *(struct clime_sample *const *)b);
}

enum clime_err clime_rollouts_give(struct clime_rollouts *r, struct clime_rollout *out, struct clime_error *e) {
    int64_t now = clime_now_us();
    *out = r->now;
    out->n_left = r->chooser.n - r->chooser.n_accepted - r->chooser.n_dropped + r->leftovers.n - r->leftovers.next;
    out->n_gpus = clime_fleet_gpus(r->c->fleet);
    out->time_us = now - r->t0 - r->idle_us;
    r->now = (struct clime_rollout){.id = out->id, .version = out->version};
    r->t0 = now;
    r->idle_us = 0;
    if (out->paused) return CLIME_OK;
    double all = (double)r->c->o->rollout_batch_size * r->members;
    clime_metric_set(r->in_flight, r->n_flight);
    clime_alarms_see(r->c->alarms, CLIME_ALARM_STALLED, 0, NULL, NULL);
    clime_alarms_see(r->c->alarms, CLIME_ALARM_REWARD_FAILS, out->n_unrewarded / all, NULL, NULL);
    clime_alarms_see(r->c->alarms, CLIME_ALARM_SAMPLES_FAIL, out->n_ungenerated / all, NULL, NULL);
    out->samples = xcalloc((size_t)r->n_slots + 1, sizeof *out->samples);
    for (int i = 0; i < r->n_slots; i++) {
        if (r->chooser.groups[i / r->members].decision != CLIME_ACCEPTED) continue;
        out->samples[out->n++] = r->slots[i].sample;
        r->slots[i].sample = NULL;
    }
    out->n = clime_samples_flatten(&out->samples, out->n);
    qsort(out->samples, (size_t)out->n, sizeof *out->samples, by_order);
    enum clime_err rc = clime_groups_dropped(r->c->db, out->id, &out->drops, &out->n_drops, e);
    if (rc) clime_rollout_free(out);
    return rc;
}

enum clime_err clime_rollouts_open(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                   const int64_t *held, int n_held, struct clime_rollouts **out,
                                   struct clime_error *e) {
    const struct clime_rl_options *o = c->o;
    struct clime_rollouts *r = *out = xcalloc(1, sizeof *r);
    r->c = c;
    r->now = (struct clime_rollout){.id = id, .version = version};
    r->members = (int)o->n_samples_per_prompt;
    r->t0 = clime_now_us();
    r->in_flight = clime_metric_gauge("clime_train_samples_in_flight", "", "Samples that are being made");
    set_window(r);
    atomic_init(&r->stop, false);
    clime_chooser_init(&r->chooser, (int)o->rollout_batch_size, (int)o->over_sampling_batch_size,
                       o->accept_order == CLIME_ACCEPT_PROMPT);
    if (o->dynamic_sampling_filter && !o->filter_hook &&
        !(r->filter = clime_filter_find(o->dynamic_sampling_filter, e)))
        return e->code;
    return resume(r, held, n_held, e);
}

void clime_rollouts_close(struct clime_rollouts *r) {
    if (r->n_flight > 0) clime_client_stop(r->c->client); /* after an error: reclaims its requests */
    clime_flight_free(r);
    for (int i = 0; i < r->n_slots; i++) clime_sample_free(r->slots[i].sample);
    free(r->slots);
    clime_leftovers_free(&r->leftovers);
    clime_chooser_free(&r->chooser);
    free(r);
}

enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e) {
    struct clime_rollouts *r;
    bool paused;
    *out = (struct clime_rollout){0};
    enum clime_err rc = clime_rollouts_open(c, id, version, NULL, 0, &r, e);
    if (!rc) rc = clime_rollouts_fill(r, id, &paused, e);
    if (!rc) rc = clime_rollouts_stop(r, e);
    if (!rc) rc = clime_rollouts_give(r, out, e);
    clime_rollouts_close(r);
    return rc;
}

void clime_rollout_free(struct clime_rollout *r) {
    clime_samples_free(r->samples, r->n);
    free(r->drops);
    *r = (struct clime_rollout){0};
}
