/* --replay-generate: checks that servers reproduce their samples. Called by recovery, main thread.
 *
 * At every version of the replay its weights are pushed, and each trained sample begun by it is generated again with
 * its seed, up to the first token whose context includes another version (none, if an update kept the KV before the
 * first token). Ids and log-probabilities must be the recorded bits. Owns the requests and their samples for one
 * version at a time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/ledger/samples.h"
#include "trainer/rollout/windowed.h"
#include "trainer/run/run.h"

struct again {
    struct clime_sampling_options sampling;
    const struct clime_sample *recorded;
    int n; /* tokens compared */
};

static struct clime_sample *same_prompt(const struct clime_sample *recorded) {
    return clime_sample_pending(recorded->rollout, recorded->group, recorded->member, recorded->seed, recorded->ids,
                                recorded->n_prompt, NULL, NULL);
}

/* Number of tokens whose context is only of the version that began the sample. */
static int n_pure(const struct clime_sample *s) {
    int n = s->versions[0].n;
    return s->mixed_kv && s->mixed_kv - 1 < n ? s->mixed_kv - 1 : n;
}

static void make(struct clime_rl *rl, const struct clime_sample *recorded, struct again *a, struct clime_request *r) {
    a->recorded = recorded;
    a->n = n_pure(recorded);
    a->sampling = rl->o.sampling;
    a->sampling.kept = false; /* only tokens are compared */
    a->sampling.experts = NULL;
    if (a->n < recorded->n_response) a->sampling.max_response_len = a->n;
    *r = (struct clime_request){.sample = same_prompt(recorded),
                                .sampling = &a->sampling,
                                .version = rl->step,
                                .scored = true, /* its reward is recorded */
                                .owner = a};
    snprintf(r->rid, sizeof r->rid, "%s/again-%" PRId64 "/%" PRId64 "/%d/%" PRId64, rl->run.start, rl->step,
             recorded->group, recorded->member, rl->run.incarnation);
}

static enum clime_err compare(void *arg, struct clime_request *r, struct clime_error *e) {
    struct clime_rl *rl = arg;
    const struct again *a = r->owner;
    const struct clime_sample *was = a->recorded, *is = r->sample;
    rl->replay_generated += a->n;
    if (is->status == CLIME_SAMPLE_FAILED)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "--replay-generate: sample %" PRId64 "/%d: %.300s", was->group,
                          was->member, is->error);
    int n = is->n_response < a->n ? is->n_response : a->n;
    for (int i = 0; i < n; i++)
        if (is->ids[is->n_prompt + i] != was->ids[was->n_prompt + i] ||
            memcmp(&is->logp[i], &was->logp[i], sizeof *is->logp) != 0)
            return clime_fail(e, CLIME_ERR_INTERNAL,
                              "--replay-generate: token %d of sample %" PRId64
                              "/%d is %d with log-probability %.9g, the "
                              "record says %d with %.9g: another program, device or option made it",
                              i, was->group, was->member, is->ids[is->n_prompt + i], (double)is->logp[i],
                              was->ids[was->n_prompt + i], (double)was->logp[i]);
    if (is->n_response == a->n) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INTERNAL,
                      "--replay-generate: sample %" PRId64
                      "/%d has %d tokens, the record says %d: another program, device "
                      "or option made it",
                      was->group, was->member, is->n_response, a->n);
}

static void tell(void *arg, int done, int n) {
    struct clime_rl *rl = arg;
    clime_progress_live(&rl->progress, "replaying: %d of %d samples of version %" PRId64 " generated again", done, n,
                        rl->step);
}

enum clime_err clime_rl_replay_generate(struct clime_rl *rl, struct clime_error *e) {
    struct clime_sample **samples;
    int n;
    enum clime_err rc = clime_samples_begun_by(clime_ledger_reader(rl->ledger), rl->step, &samples, &n, e);
    if (rc || n == 0) return rc;
    rc = clime_rl_publish(rl, e);
    if (!rc && !rl->client) rc = clime_rl_open_client(rl, e);
    struct again *list = xcalloc((size_t)n, sizeof *list);
    struct clime_request *requests = xcalloc((size_t)n, sizeof *requests);
    int n_again = 0;
    for (int i = 0; i < n; i++)
        if (n_pure(samples[i]) > 0) make(rl, samples[i], &list[n_again], &requests[n_again]), n_again++;
    struct clime_windowed w = {.client = rl->client,
                               .fleet = rl->fleet,
                               .limit_us = (int64_t)(rl->o.rollout_request_timeout * 1e6),
                               .back = compare,
                               .tell = tell,
                               .arg = rl};
    if (!rc) rc = clime_windowed_run(&w, requests, n_again, e);
    if (!rc) clime_rl_writing(rl); /* the next steps rewrite weights that servers may share */
    for (int i = 0; i < n_again; i++) clime_sample_free(requests[i].sample);
    free(requests);
    free(list);
    clime_samples_free(samples, n);
    return rc;
}
