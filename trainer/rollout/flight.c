/* Samples in flight: lease, send, collect, store. Called by rollout.c on its thread; waits happen in the client.
 *
 * Owns one `leased` per sample in flight. The ledger is written first: a lease before its request, a result before it
 * is counted.
 *
 * Only `window` samples are leased at a time, twice the client's maximum in flight: a lease must not expire while its
 * request waits in a long queue.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "trainer/ledger/events.h"
#include "trainer/rollout/rollout_int.h"
#include "trainer/sample/experts.h"

#define BATCH 256 /* results per transaction */
#define LEASE_SLACK_US 10000000

void clime_lease_times(const struct clime_rl_options *o, int64_t *made_us, int64_t *graded_us) {
    *made_us = (int64_t)(o->rollout_request_timeout * 1e6) + LEASE_SLACK_US;
    *graded_us = 2 * (int64_t)(o->rm_timeout * 1e6) + LEASE_SLACK_US; /* a grader that died is retried once */
    if (o->learner.objective.use_opd) *graded_us += (int64_t)(o->opd_teacher_timeout * 1e6);
}

/* Gathering number shared by members that are rewarded together. */
static int64_t gathering_of(struct clime_rollouts *r, int slot) {
    int first = slot / r->members * r->members;
    if (!r->c->o->group_rm) return 0;
    if (!r->slots[slot].gathering) {
        int64_t number = clime_client_gathering(r->c->client);
        for (int i = first; i < first + r->members; i++) r->slots[i].gathering = number;
    }
    return r->slots[slot].gathering;
}

/* Leases the samples of n slots and sends their requests. */
static enum clime_err submit(struct clime_rollouts *r, const int *slots, int n, struct clime_error *e) {
    const struct clime_rl_options *o = r->c->o;
    int64_t request_us = (int64_t)(o->rollout_request_timeout * 1e6), lease_us, graded_us;
    clime_lease_times(o, &lease_us, &graded_us);
    struct clime_lease leases[BATCH] = {{0}};
    for (int i = 0; i < n; i++) leases[i].sample = r->slots[slots[i]].sample;
    enum clime_err rc =
        clime_leases_take(r->c->ledger, leases, n, r->c->run->incarnation, clime_wall_us() + lease_us, e);
    int64_t now = clime_now_us();
    r->leased = xrealloc(r->leased, (size_t)(r->n_leased + n) * sizeof *r->leased);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = leases[i].sample;
        struct clime_leased *w = r->leased[r->n_leased++] = xcalloc(1, sizeof *w);
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
                                            .gathering = gathering_of(r, slots[i]),
                                            .input = clime_dataset_at(r->c->data, s->group, NULL)->input,
                                            .version = r->now.version,
                                            .newest = r->c->control ? &r->c->control->newest : NULL,
                                            .deadline_us = now + request_us,
                                            .stop = &r->stop,
                                            .teach = o->learner.objective.use_opd,
                                            .owner = w};
        snprintf(w->request.rid, sizeof w->request.rid, "%s/%" PRId64 "/%" PRId64 "/%d/%" PRId64, r->c->run->start,
                 s->rollout, s->group, s->member, w->lease.attempt);
        r->slots[slots[i]].submitted = true;
        clime_client_submit(r->c->client, &w->request);
        r->n_flight++;
    }
    return rc;
}

/* Whether slot `next` may be sent with n others. Members rewarded together are sent together: a window of incomplete
 * groups would wait forever. */
static bool has_room(const struct clime_rollouts *r, int n) {
    bool begun = r->c->o->group_rm && r->next % r->members > 0;
    return r->next < r->n_slots && (r->n_flight + n < r->window || begun);
}

enum clime_err clime_flight_submit(struct clime_rollouts *r, struct clime_error *e) {
    int slots[BATCH];
    enum clime_err rc = CLIME_OK;
    while (!rc && has_room(r, 0)) {
        int n = 0;
        for (; has_room(r, n) && n < BATCH; r->next++) {
            const struct clime_slot *s = &r->slots[r->next];
            if (!s->submitted && !s->counted && !r->chooser.groups[r->next / r->members].ended) slots[n++] = r->next;
        }
        if (n) rc = submit(r, slots, n, e);
    }
    return rc;
}

/* After the token limit a sample waits for its reward behind others: its lease expires once none of them progressed for
 * one reward's limit. It is leased again with a new sample, since the old one may still be written to. */
enum clime_err clime_flight_renew_expired(struct clime_rollouts *r, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    int64_t now = clime_now_us(), made_us, graded_us;
    clime_lease_times(r->c->o, &made_us, &graded_us);
    if (now - clime_client_moved_us(r->c->client) < graded_us) return CLIME_OK;
    for (int i = 0, n = r->n_leased; i < n && !rc; i++) {
        struct clime_leased *w = r->leased[i];
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

/* Reports failures during the rollout, because it may never become full. */
static void count_failure(struct clime_rollouts *r, const struct clime_request *request) {
    int *n = request->rewarded ? &r->now.n_unrewarded : &r->now.n_ungenerated;
    double all = (double)r->c->o->rollout_batch_size * r->members;
    ++*n;
    char *cause = xasprintf("%d sample%s of rollout %" PRId64 ", which takes %.0f, failed, the last one: %s", *n,
                            *n == 1 ? "" : "s", r->now.id, all, request->sample->error);
    clime_alarms_see_growing(r->c->alarms, request->rewarded ? CLIME_ALARM_REWARD_FAILS : CLIME_ALARM_SAMPLES_FAIL,
                             *n / all, cause);
    free(cause);
}

static void count_effort(struct clime_rollout *to, const struct clime_request *request) {
    to->n_tries += request->n_tries;
    to->n_stale += request->n_stale;
    clime_turn_counts_add(&to->turns, &request->turns);
    if (!request->rewarded) return;
    to->n_rewards++;
    to->reward_us += request->reward_us;
    if (request->reward_us > to->reward_max_us) to->reward_max_us = request->reward_us;
}

static void settle_experts(struct clime_sample *s) {
    for (struct clime_sample *p = s; p; p = p->next) clime_experts_settle(p);
}

enum clime_err clime_flight_collect(struct clime_rollouts *r, int64_t until_us, struct clime_error *e) {
    struct clime_request *back[BATCH];
    struct clime_lease leases[BATCH];
    int n = clime_client_next(r->c->client, back, BATCH, until_us);
    if (n == 0) return CLIME_OK;
    r->back_us = clime_now_us();
    for (int i = 0; i < n; i++) {
        struct clime_leased *w = back[i]->owner;
        w->back = true;
        r->n_flight--;
        count_effort(&r->now, back[i]);
        if (r->c->o->sampling.experts) settle_experts(back[i]->sample);
        leases[i] = w->lease;
    }
    enum clime_err rc = clime_leases_finish(r->c->ledger, leases, n, r->c->run->incarnation, e);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = leases[i].sample;
        const struct clime_leased *w = back[i]->owner;
        if (leases[i].lost || w->slot < 0 || clime_rollouts_dropped(r, w->slot / r->members)) continue;
        r->now.n_tokens += s->n_response > w->n_had ? s->n_response - w->n_had : 0;
        for (const struct clime_sample *p = s->next; p; p = p->next) r->now.n_tokens += n_trained(p);
        if (s->status == CLIME_SAMPLE_FAILED) {
            count_failure(r, back[i]);
            clime_rollouts_failed(r, w->slot);
        } else if (s->status != CLIME_SAMPLE_ABORTED) {
            rc = clime_rollouts_finished(r, w->slot, e);
        }
    }
    return rc;
}

static void free_leased(struct clime_leased *w) {
    if (w->abandoned) clime_sample_free(w->lease.sample);
    free(w);
}

void clime_flight_move(struct clime_rollouts *r, const int *place) {
    int n = 0;
    for (int i = 0; i < r->n_leased; i++) {
        struct clime_leased *w = r->leased[i];
        if (w->back) {
            free_leased(w);
            continue;
        }
        int g = w->slot < 0 ? -1 : place[w->slot / r->members];
        if (g < 0 && !w->abandoned) { /* the client writes to the sample: keep it until it returns */
            r->slots[w->slot].sample = NULL;
            w->abandoned = true;
        }
        w->slot = g < 0 ? -1 : g * r->members + w->slot % r->members;
        r->leased[n++] = w;
    }
    r->n_leased = n;
}

void clime_flight_free(struct clime_rollouts *r) {
    for (int i = 0; i < r->n_leased; i++) free_leased(r->leased[i]);
    free(r->leased);
}
