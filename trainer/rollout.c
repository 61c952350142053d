/* Generating one rollout. Called by the loop (rl.c) on the main thread; client threads do the waiting.
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
#include "trainer/ledger/events.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/samples.h"

#define BATCH 256      /* results stored in one transaction */
#define TICK_US 100000 /* how often the fleet and the leases are looked after */
#define LEASE_SLACK_US 10000000

struct slot {
    struct clime_sample *sample; /* while it is in flight only the worker may look inside */
    bool counted;                /* finished and stored */
};

struct work { /* a sample under a lease */
    struct clime_request request;
    struct clime_lease lease; /* lease.sample is the sample */
    int slot;
    int64_t until_us; /* clime_now_us scale */
    bool abandoned;   /* its lease ran out and another work has the slot; it frees its own sample */
    bool back;
};

struct rollout {
    const struct clime_rollout_context *c;
    struct clime_rollout *out;
    struct slot *slots; /* [n_slots] group by group, dropped ones too; owned with their samples */
    bool *dropped;      /* [n_slots / members] */
    int n_slots, members;
    int n_good;          /* groups that are not dropped */
    int next;            /* slots[next..] have not been submitted */
    struct work **works; /* [n_works], owned */
    int n_works, n_flight, window;
    int n_counted; /* in good groups */
    double reward_sum;
    int64_t t0;
};

static uint64_t seed_of(uint64_t run_seed, int64_t rollout, int64_t group, int64_t member) {
    const uint64_t words[4] = {run_seed, (uint64_t)rollout, (uint64_t)group, (uint64_t)member};
    return clime_hash64(words, 4);
}

static bool finished(const struct clime_sample *s, int64_t version) {
    return (s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED) && s->has_reward &&
           s->n_versions == 1 && s->versions[0].version == version;
}

/* ---- groups ---- */

static void add_samples(struct rollout *r, struct clime_sample **samples, int n) {
    int n_groups = (r->n_slots + n) / r->members;
    r->slots = xrealloc(r->slots, (size_t)(r->n_slots + n + 1) * sizeof *r->slots);
    r->dropped = xrealloc(r->dropped, (size_t)(n_groups + 1) * sizeof *r->dropped);
    for (int i = 0; i < n; i++) r->slots[r->n_slots + i] = (struct slot){.sample = samples[i]};
    for (int g = r->n_slots / r->members; g < n_groups; g++) r->dropped[g] = false;
    r->n_slots += n;
    r->n_good += n / r->members;
}

static void count(struct rollout *r, struct slot *s) {
    s->counted = true;
    r->n_counted++;
    r->reward_sum += s->sample->reward;
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
    enum clime_err rc = clime_groups_next(clime_ledger_reader(r->c->ledger), &next, e);
    if (rc || n == 0) return rc;
    struct clime_group *groups = xcalloc((size_t)n, sizeof *groups);
    struct clime_sample **members = xcalloc((size_t)n * (size_t)r->members, sizeof *members);
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
        add_samples(r, members, n * r->members);
    free(members);
    free(groups);
    return rc;
}

/* Drops group g and opens another in its stead. */
static enum clime_err drop_group(struct rollout *r, int g, const char *reason, struct clime_error *e) {
    int64_t id = r->slots[g * r->members].sample->group;
    r->dropped[g] = true;
    r->n_good--;
    r->out->n_dropped++;
    for (int i = g * r->members; i < (g + 1) * r->members; i++)
        if (r->slots[i].counted) {
            r->n_counted--;
            r->reward_sum -= r->slots[i].sample->reward;
        }
    clime_event(r->c->ledger, r->c->run->incarnation, "drop", "group %" PRId64 ": %s", id, reason);
    enum clime_err rc = clime_group_close(r->c->ledger, id, CLIME_GROUP_DROPPED, reason, e);
    if (rc) return rc;
    if (r->out->n_dropped > r->c->o->rollout_batch_size)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%d groups of rollout %" PRId64 " failed, the last one: %.400s",
                          r->out->n_dropped, r->out->id, reason);
    return open_groups(r, 1, e);
}

/* What the ledger holds of this rollout: finished samples stay, the rest is pending again. */
static enum clime_err resume(struct rollout *r, struct clime_error *e) {
    struct clime_db *db = clime_ledger_reader(r->c->ledger);
    struct clime_sample **samples;
    int n;
    enum clime_err rc = clime_groups_dropped(db, r->out->id, &r->out->n_dropped, e);
    if (!rc) rc = clime_samples_of_rollout(db, r->out->id, &samples, &n, e);
    if (rc) return rc;
    CHECK(n % r->members == 0);
    add_samples(r, samples, n);
    free(samples);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = r->slots[i].sample;
        if (finished(s, r->out->version)) {
            count(r, &r->slots[i]);
            r->out->n_kept++;
        } else if (s->status != CLIME_SAMPLE_PENDING && s->status != CLIME_SAMPLE_FAILED) {
            rc = clime_samples_reset(r->c->ledger, &s, 1, e);
            s->status = CLIME_SAMPLE_PENDING;
        }
    }
    for (int i = 0; i < n && !rc; i++)
        if (r->slots[i].sample->status == CLIME_SAMPLE_FAILED && !r->dropped[i / r->members])
            rc = drop_group(r, i / r->members, r->slots[i].sample->error, e);
    return rc;
}

/* ---- samples in flight ---- */

/* Leases the samples of n slots and sends their requests. */
static enum clime_err submit(struct rollout *r, const int *slots, int n, struct clime_error *e) {
    const struct clime_rl_options *o = r->c->o;
    int64_t request_us = (int64_t)(o->rollout_request_timeout * 1e6);
    /* a reward may wait for all the others in the window, with two at a time */
    int64_t lease_us = request_us + (int64_t)(o->rm_timeout * 1e6) * (1 + r->window / 2) + LEASE_SLACK_US;
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
        w->until_us = now + lease_us;
        w->request = (struct clime_request){.sample = s,
                                            .sampling = &o->sampling,
                                            .rm_type = o->rm_type,
                                            .reward_key = o->reward_key,
                                            .prompt = clime_dataset_at(r->c->data, s->group, NULL)->text,
                                            .version = r->out->version,
                                            .deadline_us = now + request_us,
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
            if (!r->slots[r->next].counted && !r->dropped[r->next / r->members]) slots[n++] = r->next;
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
        if (w->back || w->abandoned || now < w->until_us) continue;
        const struct clime_sample *old = w->lease.sample; /* identity and prompt are never written by a worker */
        const struct clime_prompt *p = clime_dataset_at(r->c->data, old->group, NULL);
        struct clime_sample *fresh = make_member(r, old->group, old->member, p);
        fresh->row_id = old->row_id;
        r->slots[w->slot].sample = fresh;
        w->abandoned = true;
        clime_event(r->c->ledger, r->c->run->incarnation, "lease", "%s expired and is taken again", w->request.rid);
        rc = submit(r, &w->slot, 1, e);
    }
    return rc;
}

/* Stores what came back; counts it; drops the groups of failed samples. */
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
        int slot = ((struct work *)back[i]->owner)->slot;
        if (leases[i].lost || r->dropped[slot / r->members]) continue;
        r->out->n_tokens += s->n_response;
        if (s->status == CLIME_SAMPLE_FAILED)
            rc = drop_group(r, slot / r->members, s->error, e);
        else
            count(r, &r->slots[slot]);
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

static enum clime_err run(struct rollout *r, struct clime_error *e) {
    struct clime_request *back[BATCH];
    int64_t tick = clime_now_us() + TICK_US;
    enum clime_err rc = submit_more(r, e);
    while (!rc && r->n_counted < r->n_good * r->members) {
        int n = clime_client_next(r->c->client, back, BATCH, tick);
        if (n && (rc = collect(r, back, n, e))) break;
        if (clime_now_us() >= tick) {
            if ((rc = clime_fleet_poll(r->c->fleet, e)) || (rc = renew_expired(r, e))) break;
            tick = clime_now_us() + TICK_US;
        }
        rc = submit_more(r, e);
        show(r);
    }
    return rc;
}

/* Requests of dropped groups and abandoned leases may still be out: no memory is freed under a worker's hands. */
static void drain(struct rollout *r) {
    struct clime_request *back[BATCH];
    struct clime_error e;
    while (r->n_flight > 0) {
        int n = clime_client_next(r->c->client, back, BATCH, clime_now_us() + TICK_US);
        for (int i = 0; i < n; i++) ((struct work *)back[i]->owner)->back = true;
        r->n_flight -= n;
        if (clime_fleet_poll(r->c->fleet, &e)) LOG_WARN("%s", e.msg);
    }
}

static int by_order(const void *a, const void *b) {
    return clime_sample_order(*(struct clime_sample *const *)a, *(struct clime_sample *const *)b);
}

enum clime_err clime_rollout_generate(const struct clime_rollout_context *c, int64_t id, int64_t version,
                                      struct clime_rollout *out, struct clime_error *e) {
    *out = (struct clime_rollout){.id = id, .version = version};
    struct rollout r = {.c = c,
                        .out = out,
                        .members = (int)c->o->n_samples_per_prompt,
                        .window = 2 * c->n_threads,
                        .t0 = clime_now_us()};
    enum clime_err rc = resume(&r, e);
    if (!rc) rc = open_groups(&r, (int)c->o->rollout_batch_size - r.n_good, e);
    if (!rc) rc = run(&r, e);
    if (!rc)
        drain(&r);
    else
        clime_client_stop(c->client);
    out->samples = xcalloc((size_t)r.n_slots + 1, sizeof *out->samples);
    for (int i = 0; i < r.n_slots; i++)
        if (rc || r.dropped[i / r.members])
            clime_sample_free(r.slots[i].sample);
        else
            out->samples[out->n++] = r.slots[i].sample;
    qsort(out->samples, (size_t)out->n, sizeof *out->samples, by_order);
    out->time_us = clime_now_us() - r.t0;
    for (int i = 0; i < r.n_works; i++) {
        if (r.works[i]->abandoned) clime_sample_free(r.works[i]->lease.sample);
        free(r.works[i]);
    }
    free(r.works);
    free(r.slots);
    free(r.dropped);
    if (rc) clime_rollout_free(out);
    return rc;
}

void clime_rollout_free(struct clime_rollout *r) {
    clime_samples_free(r->samples, r->n);
    *r = (struct clime_rollout){0};
}
