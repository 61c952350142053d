/* Computes the memory cost of log-probabilities, sampling masks and routed experts. Called before a job is submitted;
 * owns nothing.
 *
 * Unbounded, a body of a few hundred bytes could request 64 GB: 4,096 outputs of 8,192 positions with 256 numbers each.
 * The size of a number in a reply is an estimate ("[-12.345678,123456,null],"); the reply's own cap backs it up.
 */
#include "server/job/logprob_cost.h"

#define HELD_BYTES 8        /* an id and its log-probability */
#define TEXT_BYTES 32       /* the same in a reply */
#define TOKEN_TEXT_BYTES 12 /* plus the token's text, if requested */
#define POSITION_BYTES 32   /* per list: pointer, header and malloc overhead */
#define MASK_ID_BYTES 4
#define MASK_ID_TEXT 8 /* "151935," */
#define CHOICE_BYTES 4 /* an expert */
#define CHOICE_TEXT 6  /* the same in base64, rounded up */

static int64_t positions_of(const struct clime_output *o) {
    if (!o->logp->wanted && o->logp->top == 0 && o->logp->n_ids == 0 && !o->logp->ranks) return 0;
    bool of_prompt = o->logp->start >= 0 && o->logp->start < o->n_prompt;
    return o->max_new + (of_prompt ? o->n_prompt - o->logp->start : 0);
}

static int64_t entries_of(const struct clime_output *o) {
    return positions_of(o) * (1 + o->logp->top + o->logp->n_ids + o->logp->ranks);
}

/* Upper bound of its sampling masks: what top-p leaves is known only at the draw. */
static int64_t mask_bytes(const struct clime_output *o, int each_id, int each_token) {
    int64_t room = clime_output_mask_room(o);
    return room > 0 ? o->max_new * (room * each_id + each_token) : 0;
}

/* Experts of all positions but the last token's. */
static int64_t choices_of(const struct clime_output *o) {
    const struct clime_job *j = o->job;
    int64_t n = (int64_t)o->n_prompt + o->max_new - 1 - j->choices_from;
    return j->choices_wanted && n > 0 ? n * j->choices_width : 0;
}

static int64_t text_of(const struct clime_output *o) {
    int64_t once =
        entries_of(o) * (TEXT_BYTES + (o->logp->text ? TOKEN_TEXT_BYTES : 0)) + mask_bytes(o, MASK_ID_TEXT, TEXT_BYTES);
    return once * (1 + o->job->n_repeats) + choices_of(o) * CHOICE_TEXT;
}

int64_t clime_logprob_cost(const struct clime_job *j) {
    int64_t sum = 0;
    for (int i = 0; i < j->n_outs; i++) {
        const struct clime_output *o = &j->outs[i];
        bool lists = o->logp->top + o->logp->n_ids + o->logp->ranks > 0;
        sum += entries_of(o) * HELD_BYTES + text_of(o) + (lists ? positions_of(o) * POSITION_BYTES : 0) +
               mask_bytes(o, MASK_ID_BYTES, POSITION_BYTES) + choices_of(o) * CHOICE_BYTES;
    }
    return sum;
}

int64_t clime_logprob_text(const struct clime_job *j) {
    int64_t sum = 0, most = 0;
    for (int i = 0; i < j->n_outs; i++) {
        int64_t text = text_of(&j->outs[i]);
        sum += text;
        if (text > most) most = text;
    }
    return j->stream ? most : sum;
}
