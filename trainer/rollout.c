/* Generating one rollout. Called by the loop (rl.c) on the main thread, or by trainer/generation.c on its own; client
 * threads do the waiting.
 *
 * Owns the rollout's samples and one `work` for each sample in flight. The ledger is written first and memory follows:
 * groups and pending samples before anything is sent, a lease before a request, the result before it is counted. So the
 * same function generates a rollout from nothing and finishes one that a crash cut off.
 *
 * Only `window` samples are leased at a time, twice the client's threads: a lease's clock must not run while its
 * request waits in a queue behind a thousand others.
 */
#include "trainer/rollout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "trainer/buffer.h"
#include "trainer/choose.h"
#include "trainer/filter.h"
#include "trainer/hooks.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/samples.h"

#define BATCH 256              /* results stored in one transaction */
#define TICK_US 100000         /* how often the fleet and the leases are looked after */
#define ABORT_AGAIN_US 1000000 /* a request that was on its way when the servers were told does not know it yet */
#define LEASE_SLACK_US 10000000
#define MOST_FILTERED 100 /* a filter that drops so many times the groups of a rollout finds nothing to train on */

struct slot {
    struct clime_sample *sample; /* while it is in flight only the worker may look inside */
    bool counted;                /* finished and stored */
    bool failed;
};

struct work { /* a sample under a lease */
    struct clime_request request;
    struct clime_lease lease; /* lease.sample is the sample */
    int slot;
    int32_t n_had;    /* response tokens before the request */
    int64_t until_us; /* clime_now_us scale */
    bool abandoned;   /* its lease ran out and another work has the slot; it frees its own sample */
    bool back;
};

struct rollout {
    const struct clime_rollout_context *c;
    struct clime_rollout *out;
    struct clime_chooser chooser; /* group g has the slots from g * members on */
    clime_filter_fn *filter;      /* NULL = none */
    struct clime_buffer buffer;
    struct slot *slots; /* [n_slots] group by group, dropped ones too; owned with their samples */
    int n_slots, members;
    int next;            /* slots[next..] have not been submitted */
    struct work **works; /* [n_works], owned */
    int n_works, n_flight, window;
    int64_t first_group; /* that the rollout opened; -1 = none yet */
    int n_counted;       /* in groups that are not dropped */
    double reward_sum;
    int n_failed, n_filtered; /* groups dropped */
    atomic_bool stop;         /* the rollout is full: what is in flight comes back as it is */
    int64_t t0;
};

static uint64_t seed_of(uint64_t run_seed, int64_t rollout, int64_t group, int64_t member) {
    const uint64_t words[4] = {run_seed, (uint64_t)rollout, (uint64_t)group, (uint64_t)member};
    return clime_hash64(words, 4);
}

/* ---- groups ---- */

static bool dropped(const struct rollout *r, int g) {
    return r->chooser.groups[g].decision == CLIME_DROPPED;
}

static void count(struct rollout *r, struct slot *s) {
    s->counted = true;
    r->n_counted++;
    r->reward_sum += clime_sample_reward(s->sample);
}

static bool all_old(const struct rollout *r, int g) {
    for (int i = g * r->members; i < (g + 1) * r->members; i++) {
        const struct clime_sample *s = r->slots[i].sample;
        if (s->n_versions && s->versions[s->n_versions - 1].version == r->out->version) return false;
    }
    return true;
}

/* Tells the chooser about group g when all its members are finished. */
static enum clime_err finish_group(struct rollout *r, int g, struct clime_error *e) {
    const struct clime_hook *hook = r->c->o->filter_hook;
    struct clime_verdict v = {.keep = true};
    enum clime_err rc = CLIME_OK;
    struct clime_sample **members = xcalloc((size_t)r->members, sizeof *members);
    bool complete = !r->chooser.groups[g].ended;
    for (int m = 0; m < r->members; m++) {
        complete = complete && r->slots[g * r->members + m].counted;
        members[m] = r->slots[g * r->members + m].sample;
    }
    if (complete && r->c->o->learner.mask_offpolicy && all_old(r, g))
        v = (struct clime_verdict){.reason = "offpolicy"}; /* no token would be trained on */
    else if (complete && hook)
        rc = clime_hook_filter(hook, members, r->members, &v, e);
    else if (complete && r->filter)
        r->filter(members, r->members, &v);
    if (complete) clime_chooser_finish(&r->chooser, g, &v);
    free(members);
    return rc;
}

static void fail_group(struct rollout *r, int slot) {
    int g = slot / r->members;
    r->slots[slot].failed = true;
    if (!r->chooser.groups[g].ended) clime_chooser_fail(&r->chooser, g);
}

/* Some token is older than --max-staleness allows when the rollout is trained on. */
static bool too_old(const struct rollout *r, const struct clime_sample *s) {
    int64_t limit = r->c->o->max_staleness, trained_at = r->out->id * r->c->o->num_steps_per_rollout;
    return limit >= 0 && s->n_versions && trained_at - s->versions[0].version > limit;
}

/* The sample is pending again, after the dataset's prompt: an environment may have begun with another. */
static enum clime_err begin_again(struct rollout *r, struct clime_sample *s, struct clime_error *e) {
    const struct clime_prompt *p = clime_dataset_at(r->c->data, s->group, NULL);
    clime_sample_restart(s);
    if (r->c->o->environment) {
        s->n_prompt = p->n_ids;
        s->ids = xrealloc(s->ids, (size_t)p->n_ids * sizeof *s->ids);
        memcpy(s->ids, p->ids, (size_t)p->n_ids * sizeof *s->ids);
    }
    return clime_samples_reset(r->c->ledger, &s, 1, e);
}

/* Takes over what the ledger holds of group g: finished samples stay; with --partial-rollout so do the tokens of the
 * others, else those are sampled anew, and so is what is too old. */
static enum clime_err admit(struct rollout *r, int g, struct clime_error *e) {
    bool partial = r->c->o->partial_rollout;
    bool whole = true; /* rewarded together, or again together */
    enum clime_err rc = CLIME_OK;
    for (int i = g * r->members; i < (g + 1) * r->members; i++)
        whole = whole && clime_sample_finished(r->slots[i].sample);
    for (int i = g * r->members; i < (g + 1) * r->members && !rc; i++) {
        struct clime_sample *s = r->slots[i].sample;
        if (r->c->o->group_rm && !whole && clime_sample_finished(s)) {
            rc = begin_again(r, s, e);
        }
        bool current = s->n_versions == 1 && s->versions[0].version == r->out->version;
        bool old = partial ? too_old(r, s) : !current;
        if (s->status == CLIME_SAMPLE_FAILED) {
            fail_group(r, i);
        } else if (clime_sample_finished(s) && !old) {
            count(r, &r->slots[i]);
        } else if (s->n_response > 0 && (old || !partial)) {
            r->out->n_reset += partial;
            rc = begin_again(r, s, e);
        }
    }
    return rc ? rc : finish_group(r, g, e);
}

static enum clime_err add_groups(struct rollout *r, struct clime_sample **samples, int n, struct clime_error *e) {
    int first = r->chooser.n;
    enum clime_err rc = CLIME_OK;
    r->slots = xrealloc(r->slots, (size_t)(r->n_slots + n * r->members + 1) * sizeof *r->slots);
    for (int i = 0; i < n * r->members; i++) r->slots[r->n_slots++] = (struct slot){.sample = samples[i]};
    clime_chooser_add(&r->chooser, n);
    for (int g = first; g < first + n; g++) /* the numbers of a rollout's groups have no gaps but for dropped ones */
        r->chooser.groups[g].skipped = (int)(samples[(g - first) * r->members]->group - r->first_group) - g;
    for (int g = first; g < first + n && !rc; g++) rc = admit(r, g, e);
    return rc;
}

static struct clime_sample *make_member(const struct rollout *r, int64_t group, int member,
                                        const struct clime_prompt *p) {
    struct clime_sample *s = clime_sample_new();
    s->rollout = r->out->id;
    s->group = group;
    s->member = member;
    s->seed = seed_of(r->c->run->seed, r->out->id, group, member);
    s->n_prompt = p->n_ids;
    s->ids = xmalloc((size_t)p->n_ids * sizeof *s->ids);
    memcpy(s->ids, p->ids, (size_t)p->n_ids * sizeof *s->ids);
    s->label = p->label ? xstrdup(p->label) : NULL;
    s->metadata = p->metadata ? xstrdup(p->metadata) : NULL;
    return s;
}

/* Opens the next n groups of the dataset. */
static enum clime_err open_groups(struct rollout *r, int n, struct clime_error *e) {
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
        g->rollout = r->out->id;
        g->line = p->line;
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

/* Adds n groups: from the buffer while it has some, then from the dataset. */
static enum clime_err more_groups(struct rollout *r, int n, struct clime_error *e) {
    struct clime_sample **samples;
    int taken = clime_buffer_take(&r->buffer, n, &samples);
    enum clime_err rc = taken ? add_groups(r, samples, taken, e) : CLIME_OK;
    return rc ? rc : open_groups(r, n - taken, e);
}

/* Records that group g is not used. Too many of them end the run: it would go on for ever. */
static enum clime_err drop_group(struct rollout *r, int g, struct clime_error *e) {
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
        clime_group_drop(r->c->ledger, id, r->out->id, d->failed ? CLIME_DROP_FAILED : CLIME_DROP_FILTER, reason, e);
    if (rc) return rc;
    if (d->failed && ++r->n_failed > limit)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%d groups of rollout %" PRId64 " failed, the last one: %.400s",
                          r->n_failed, r->out->id, reason);
    if (!d->failed && ++r->n_filtered > MOST_FILTERED * limit)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "the filter dropped %d groups of rollout %" PRId64
                          ", the last one for %s: there is nothing to "
                          "learn from these prompts",
                          r->n_filtered, r->out->id, reason);
    return CLIME_OK;
}

/* Decides what can be decided and adds groups where too few are left. */
static enum clime_err settle(struct rollout *r, struct clime_error *e) {
    for (;;) {
        enum clime_err rc = CLIME_OK;
        for (int g; !rc && (g = clime_chooser_decide(&r->chooser)) >= 0;)
            if (dropped(r, g)) rc = drop_group(r, g, e);
        int n = rc ? 0 : clime_chooser_missing(&r->chooser);
        if (n) rc = more_groups(r, n, e);
        if (rc || n == 0) return rc;
    }
}

/* What the ledger holds of this rollout and, with --partial-rollout, of those before it. */
static enum clime_err resume(struct rollout *r, struct clime_error *e) {
    struct clime_db *db = r->c->db;
    const struct clime_rl_options *o = r->c->o;
    struct clime_drop_count *drops;
    struct clime_sample **samples;
    int n;
    enum clime_err rc = clime_groups_dropped(db, r->out->id, &drops, &n, e);
    if (!rc) rc = clime_groups_first(db, r->out->id, &r->first_group, e);
    for (int i = 0; i < n; i++) {
        if (drops[i].cause == CLIME_DROP_FAILED) r->n_failed += drops[i].n;
        if (drops[i].cause == CLIME_DROP_FILTER) r->n_filtered += drops[i].n;
    }
    free(drops);
    const struct clime_buffer_order left = {.name = o->partial_rollout ? o->buffer_filter : "pop_first",
                                            .hook = o->partial_rollout ? o->buffer_hook : NULL,
                                            .rollout = r->out->id,
                                            .version = r->out->version};
    if (!rc) rc = clime_buffer_load(db, &left, r->members, &r->buffer, e);
    if (rc || o->partial_rollout) return rc;
    /* all of them were submitted before, in this order: what comes of them must not depend on the crash */
    n = clime_buffer_take(&r->buffer, r->buffer.n, &samples);
    return add_groups(r, samples, n, e);
}

/* ---- samples in flight ---- */

/* Leases the samples of n slots and sends their requests. */
static enum clime_err submit(struct rollout *r, const int *slots, int n, struct clime_error *e) {
    const struct clime_rl_options *o = r->c->o;
    int64_t request_us = (int64_t)(o->rollout_request_timeout * 1e6);
    /* a reward may wait for all the others in the window, with two at a time */
    int64_t lease_us = request_us + (int64_t)(o->rm_timeout * 1e6) * (1 + r->window / 2) + LEASE_SLACK_US;
    if (o->learner.use_opd)
        lease_us += (int64_t)(o->opd_teacher_timeout * 1e6) * (1 + r->window / o->opd_teacher_concurrency);
    struct clime_lease leases[BATCH] = {{0}};
    for (int i = 0; i < n; i++) leases[i].sample = r->slots[slots[i]].sample;
    enum clime_err rc =
        clime_leases_take(r->c->ledger, leases, n, r->c->run->incarnation, clime_wall_us() + lease_us, e);
    int64_t now = clime_now_us();
    r->works = xrealloc(r->works, (size_t)(r->n_works + n) * sizeof *r->works);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = leases[i].sample;
        struct work *w = r->works[r->n_works++] = xcalloc(1, sizeof *w);
        w->lease = leases[i];
        w->slot = slots[i];
        w->n_had = s->n_response;
        w->until_us = now + lease_us;
        w->request = (struct clime_request){.sample = s,
                                            .sampling = &o->sampling,
                                            .rm_type = o->rm_type,
                                            .reward_key = o->reward_key,
                                            .prompt = clime_dataset_at(r->c->data, s->group, NULL)->text,
                                            .group_size = o->group_rm ? r->members : 0,
                                            .input = clime_dataset_at(r->c->data, s->group, NULL)->input,
                                            .version = r->out->version,
                                            .newest = r->c->control ? &r->c->control->newest : NULL,
                                            .deadline_us = now + request_us,
                                            .stop = &r->stop,
                                            .teach = o->learner.use_opd,
                                            .owner = w};
        snprintf(w->request.rid, sizeof w->request.rid, "%s/%" PRId64 "/%" PRId64 "/%d/%" PRId64, r->c->run->name,
                 s->rollout, s->group, s->member, w->lease.attempt);
        clime_client_submit(r->c->client, &w->request);
        r->n_flight++;
    }
    return rc;
}

/* Keeps the window full. */
static enum clime_err submit_more(struct rollout *r, struct clime_error *e) {
    int slots[BATCH];
    enum clime_err rc = CLIME_OK;
    while (!rc && r->next < r->n_slots && r->n_flight < r->window) {
        int n = 0;
        for (; r->next < r->n_slots && r->n_flight + n < r->window && n < BATCH; r->next++)
            if (!r->slots[r->next].counted && !r->chooser.groups[r->next / r->members].ended) slots[n++] = r->next;
        if (n) rc = submit(r, slots, n, e);
    }
    return rc;
}

/* An expired lease is taken again, with a new sample: the worker that has the old one may still write to it. */
static enum clime_err renew_expired(struct rollout *r, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    int64_t now = clime_now_us();
    for (int i = 0, n = r->n_works; i < n && !rc; i++) {
        struct work *w = r->works[i];
        struct clime_sample *fresh;
        if (w->back || w->abandoned || now < w->until_us) continue;
        rc = clime_sample_load(r->c->db, w->lease.sample->row_id, &fresh, e);
        if (rc) break;
        r->slots[w->slot].sample = fresh;
        w->abandoned = true;
        clime_event(r->c->ledger, r->c->run->incarnation, "lease", "%s expired and is taken again", w->request.rid);
        rc = submit(r, &w->slot, 1, e);
    }
    return rc;
}

static int64_t n_trained(const struct clime_sample *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_response; i++) n += s->mask[i];
    return n;
}

/* Stores what came back and counts it. */
static enum clime_err collect(struct rollout *r, struct clime_request **back, int n, struct clime_error *e) {
    struct clime_lease leases[BATCH];
    for (int i = 0; i < n; i++) {
        struct work *w = back[i]->owner;
        w->back = true;
        r->n_flight--;
        r->out->n_tries += back[i]->n_tries;
        r->out->n_stale += back[i]->n_stale;
        leases[i] = w->lease;
    }
    enum clime_err rc = clime_leases_finish(r->c->ledger, leases, n, r->c->run->incarnation, e);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = leases[i].sample;
        const struct work *w = back[i]->owner;
        int slot = w->slot;
        if (leases[i].lost || dropped(r, slot / r->members)) continue;
        r->out->n_tokens += s->n_response > w->n_had ? s->n_response - w->n_had : 0;
        for (const struct clime_sample *p = s->next; p; p = p->next) r->out->n_tokens += n_trained(p);
        if (s->status == CLIME_SAMPLE_FAILED) {
            fail_group(r, slot);
        } else if (s->status != CLIME_SAMPLE_ABORTED) {
            count(r, &r->slots[slot]);
            rc = finish_group(r, slot / r->members, e);
        }
    }
    return rc;
}

static void show(struct rollout *r) {
    double s = (double)(clime_now_us() - r->t0) / 1e6;
    clime_progress_live(r->c->progress, "rollout %" PRId64 ": %d of %lld samples, %.0f tokens/s, reward %.3f",
                        r->out->id, r->n_counted, (long long)r->c->o->rollout_batch_size * r->members,
                        (double)r->out->n_tokens / (s > 0.001 ? s : 0.001),
                        r->n_counted ? r->reward_sum / r->n_counted : 0.0);
}

/* What the thread that wants the rollout says. New weights may have come when it returns. */
static enum clime_err obey(struct rollout *r, bool *pause, struct clime_error *e) {
    enum clime_rollout_order order =
        r->c->control ? clime_rollout_control_look(r->c->control, &r->out->version) : CLIME_ROLLOUT_GO;
    *pause = order == CLIME_ROLLOUT_PAUSE;
    if (order != CLIME_ROLLOUT_CANCEL) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_ABORTED, "rollout %" PRId64 " was given up", r->out->id);
}

static enum clime_err run(struct rollout *r, struct clime_error *e) {
    struct clime_request *back[BATCH];
    int64_t tick = clime_now_us() + TICK_US;
    enum clime_err rc;
    while (!(rc = settle(r, e)) && !clime_chooser_full(&r->chooser)) {
        if ((rc = obey(r, &r->out->paused, e)) || r->out->paused || (rc = submit_more(r, e))) break;
        int n = clime_client_next(r->c->client, back, BATCH, tick);
        if (n && (rc = collect(r, back, n, e))) break;
        if (clime_now_us() >= tick) {
            if ((rc = clime_fleet_poll(r->c->fleet, e)) || (rc = renew_expired(r, e))) break;
            tick = clime_now_us() + TICK_US;
        }
        show(r);
    }
    return rc;
}

/* The rollout is full, or paused: stops what is still in flight and stores how far it came. */
static enum clime_err stop(struct rollout *r, struct clime_error *e) {
    struct clime_request *back[BATCH];
    char prefix[40];
    int64_t again = 0;
    bool pause; /* what a pause wants is going on */
    enum clime_err rc = CLIME_OK;
    atomic_store(&r->stop, true);
    snprintf(prefix, sizeof prefix, "%s/", r->c->run->name);
    while (!rc && r->n_flight > 0 && !(rc = obey(r, &pause, e))) {
        if (clime_now_us() >= again) {
            clime_fleet_abort(r->c->fleet, prefix);
            again = clime_now_us() + ABORT_AGAIN_US;
        }
        int n = clime_client_next(r->c->client, back, BATCH, clime_now_us() + TICK_US);
        if (n) rc = collect(r, back, n, e);
        if (!rc && clime_fleet_poll(r->c->fleet, e)) LOG_WARN("%s", e->msg);
        clime_progress_live(r->c->progress, "rollout %" PRId64 ": waiting for %d requests that were stopped",
                            r->out->id, r->n_flight);
    }
    return rc;
}

/* ---- the result ---- */

static int by_order(const void *a, const void *b) {
    return clime_sample_order(*(struct clime_sample *const *)a, *(struct clime_sample *const *)b);
}

/* Moves the samples of the accepted groups to out; frees the others. */
static void give(struct rollout *r, bool good) {
    struct clime_rollout *out = r->out;
    out->samples = xcalloc((size_t)r->n_slots + 1, sizeof *out->samples);
    for (int i = 0; i < r->n_slots; i++) {
        struct clime_sample *s = r->slots[i].sample;
        if (!good || r->chooser.groups[i / r->members].decision != CLIME_ACCEPTED) {
            clime_sample_free(s);
            continue;
        }
        out->samples[out->n++] = s;
    }
    out->n = clime_samples_flatten(&out->samples, out->n);
    qsort(out->samples, (size_t)out->n, sizeof *out->samples, by_order);
    out->n_left = r->chooser.n - r->chooser.n_accepted - r->chooser.n_dropped + r->buffer.n - r->buffer.next;
    out->n_servers = clime_fleet_size(r->c->fleet);
    out->time_us = clime_now_us() - r->t0;
}

enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e) {
    const struct clime_rl_options *o = c->o;
    *out = (struct clime_rollout){.id = id, .version = version};
    struct rollout r = {
        .c = c, .out = out, .members = (int)o->n_samples_per_prompt, .window = 2 * c->n_threads, .t0 = clime_now_us()};
    if (c->o->group_rm && r.window < r.members) r.window = r.members; /* they wait for each other */
    atomic_init(&r.stop, false);
    clime_chooser_init(&r.chooser, (int)o->rollout_batch_size, (int)o->over_sampling_batch_size,
                       o->accept_order == CLIME_ACCEPT_PROMPT);
    enum clime_err rc = CLIME_OK;
    if (o->dynamic_sampling_filter && !o->filter_hook && !(r.filter = clime_filter_find(o->dynamic_sampling_filter, e)))
        rc = e->code;
    if (!rc) rc = resume(&r, e);
    if (!rc) rc = run(&r, e);
    if (!rc) rc = stop(&r, e);
    if (rc) clime_client_stop(c->client);
    give(&r, rc == CLIME_OK && !out->paused);
    if (!rc) rc = clime_groups_dropped(c->db, id, &out->drops, &out->n_drops, e);
    for (int i = 0; i < r.n_works; i++) {
        if (r.works[i]->abandoned) clime_sample_free(r.works[i]->lease.sample);
        free(r.works[i]);
    }
    free(r.works);
    free(r.slots);
    clime_buffer_free(&r.buffer);
    clime_chooser_free(&r.chooser);
    if (rc) clime_rollout_free(out);
    return rc;
}

void clime_rollout_free(struct clime_rollout *r) {
    clime_samples_free(r->samples, r->n);
    free(r->drops);
    *r = (struct clime_rollout){0};
}
