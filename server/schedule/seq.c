/* Makes and frees sequences. The thread that submits a job makes its sequences (clime_engine_submit), since that walks
 * the prompt; the engine thread then owns and frees them.
 *
 * Invariant: nothing here reads the engine's state, only its constant options.
 */
#include "server/schedule/seq.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "server/job/job.h"
#include "server/schedule/kv_pages.h"
#include "server/schedule/logit_edits.h"

/* The ids that end a sequence and are below V. */
static int stop_ids(const struct clime_sampling_params *p, const struct clime_seq_options *opts, int32_t *out) {
    int n = 0;
    for (int i = 0; i < opts->n_eos; i++)
        if (opts->eos[i] < opts->V) out[n++] = opts->eos[i];
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] < opts->V) out[n++] = p->stop_ids[i];
    return n;
}

static uint64_t hash_of(const struct clime_output *o) {
    return clime_hash_bytes(o->ids, (size_t)o->n_prompt * sizeof *o->ids, o->salt);
}

struct clime_seq *clime_seq_new(struct clime_output *o, const struct clime_seq_options *opts,
                                const struct clime_seq *before) {
    const struct clime_sampling_params *p = o->params;
    struct clime_seq *q = xcalloc(1, sizeof *q);
    int32_t *stop = xmalloc((size_t)(opts->n_eos + p->n_stop_ids) * sizeof *stop + 1);
    int n_stop = stop_ids(p, opts, stop);
    q->out = o;
    q->queued_us = clime_now_us();
    q->n_prompt = o->n_prompt;
    q->n_total = o->n_prompt + o->n_resumed;
    q->max_total = o->finish.type != CLIME_FINISH_NONE ? q->n_total : o->n_prompt + o->max_new; /* ended */
    q->ids = xmalloc((size_t)q->max_total * sizeof *q->ids);
    memcpy(q->ids, o->ids, (size_t)o->n_prompt * sizeof *q->ids);
    q->pages = xmalloc((size_t)clime_pages_for(q->max_total) * sizeof *q->pages);
    q->edits = clime_logit_edits_new(p, o->grammar, opts->V, o->ids, o->n_prompt, stop, n_stop);
    for (int i = 0; i < o->n_resumed; i++) { /* as after a preemption */
        q->ids[o->n_prompt + i] = o->out.data[i];
        if (q->edits) clime_logit_edits_add(q->edits, o->out.data[i]);
    }
    q->salt = o->salt;
    bool sibling = before && before->out->ids == o->ids && before->n_prompt == o->n_prompt && before->salt == o->salt;
    q->prompt_hash = sibling ? before->prompt_hash : hash_of(o);
    q->prompt_logp_next = q->n_prompt;
    if (o->logp->wanted && o->logp->start >= 0 && o->logp->start < q->n_prompt)
        q->prompt_logp_next = o->logp->start > 0 ? (int)o->logp->start : 1;
    q->share_prompt = o->n_resumed == 0 && q->prompt_logp_next == q->n_prompt && (opts->cache || o->job->n_samples > 1);
    free(stop);
    return q;
}

void clime_seq_free(struct clime_seq *q) {
    if (!q) return;
    clime_logit_edits_free(q->edits);
    free(q->choices);
    free(q->ids);
    free(q->pages);
    free(q);
}
