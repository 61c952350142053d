/* The cost of log-probabilities. Called before a job is submitted; owns nothing.
 *
 * Without a bound one body of a few hundred bytes asks for 64 GB: 4,096 outputs of 8,192 positions with 256 numbers
 * each. The size of a number in a reply is an estimate ("[-12.345678,123456,null],"); the reply's own cap stands behind
 * it.
 */
#include "server/job/logprob_cost.h"

#define ENTRY_BYTES (8 + 32) /* an id and its number: held, and as text */
#define POSITION_BYTES 32    /* a list of them: its pointer, header and malloc's own */

static int64_t position_cost(const struct clime_logp_options *lp) {
    int64_t more = lp->top + lp->n_ids;
    return ENTRY_BYTES * (1 + more) + (more > 0 ? POSITION_BYTES : 0);
}

int64_t clime_logprob_cost(const struct clime_job *j) {
    int64_t sum = 0;
    for (int i = 0; i < j->n_outs; i++) {
        const struct clime_output *o = &j->outs[i];
        if (!o->logp->wanted && o->logp->top == 0 && o->logp->n_ids == 0) continue;
        int64_t positions = o->max_new;
        if (o->logp->start >= 0 && o->logp->start < o->n_prompt) positions += o->n_prompt - o->logp->start;
        sum += positions * position_cost(o->logp);
    }
    return sum;
}
