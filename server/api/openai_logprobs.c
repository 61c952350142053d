/* Writers of log-probabilities shared by endpoints: chat's {"content": [...]}, and vLLM's prompt_logprobs. Writers run
 * on the HTTP worker, or on the job's emitter for streams; they read outputs only.
 */
#include <stdio.h>

#include "server/api/openai.h"

static void write_text(struct clime_jw *w, const struct clime_openai_request *r, const struct clime_job *j,
                       int32_t id) {
    char text[32];
    if (!r->ids_as_text) {
        clime_jw_str(w, clime_tokenizer_bytes(j->tokenizer, id));
        return;
    }
    int n = snprintf(text, sizeof text, "token_id:%d", (int)id);
    clime_jw_str(w, (struct clime_str){text, (size_t)n});
}

static void write_token(struct clime_jw *w, const struct clime_job *j, int32_t id, float logp) {
    clime_jw_key(w, "token");
    write_text(w, j->endpoint, j, id);
    clime_chat_answer_logprob(w, clime_tokenizer_bytes(j->tokenizer, id), logp);
}

static void write_other(struct clime_jw *w, const struct clime_job *j, int32_t id, float logp) {
    clime_jw_object(w);
    write_token(w, j, id, logp);
    clime_jw_close(w);
}

/* Members of a sampled token's object. Requested ids replace the largest, after the token itself (as in vLLM). */
static void write_sampled(struct clime_jw *w, const void *of, size_t i) {
    const struct clime_output *o = of;
    const struct clime_openai_request *r = o->job->endpoint;
    const struct clime_lp_extra *x = o->extra ? o->extra[i] : NULL;
    write_token(w, o->job, o->out.data[i], o->out_logp[i]);
    clime_jw_key(w, "top_logprobs");
    clime_jw_array(w);
    if (r->logp.n_ids > 0) write_other(w, o->job, o->out.data[i], o->out_logp[i]);
    for (int k = 0; x && k < r->logp.n_ids; k++)
        if (x->at[x->n_top + k].id != o->out.data[i])
            write_other(w, o->job, x->at[x->n_top + k].id, x->at[x->n_top + k].logp);
    for (int k = 0; x && r->logp.n_ids == 0 && k < x->n_top && k < r->top; k++)
        write_other(w, o->job, x->at[k].id, x->at[k].logp);
    clime_jw_close(w);
}

void clime_openai_write_content_logprobs(struct clime_jw *w, const struct clime_output *o, size_t from, size_t to) {
    const struct clime_openai_request *r = o->job->endpoint;
    clime_jw_key(w, "logprobs");
    if (!r->logprobs) {
        clime_jw_null(w);
        return;
    }
    clime_jw_object(w);
    clime_jw_key(w, "content");
    clime_jw_array(w);
    for (size_t i = from; i < to; i++) {
        clime_jw_object(w);
        write_sampled(w, o, i);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "refusal");
    clime_jw_null(w);
    clime_jw_close(w);
}

static size_t token_begins(const void *of, size_t i) {
    return ((const struct clime_output *)of)->text_at[i];
}

struct clime_answer_tokens clime_openai_tokens(const struct clime_output *o) {
    const struct clime_openai_request *r = o->job->endpoint;
    return (struct clime_answer_tokens){
        .n = r->logprobs ? o->out.len : 0, .begins = token_begins, .write = write_sampled, .of = o};
}

static void write_alternative(struct clime_jw *w, const struct clime_job *j, int32_t id, float logp, int rank) {
    char name[16];
    snprintf(name, sizeof name, "%d", (int)id);
    clime_jw_key(w, name);
    clime_jw_object(w);
    clime_jw_put_float(w, "logprob", logp);
    clime_jw_put_int(w, "rank", rank);
    clime_jw_put_str(w, "decoded_token", clime_tokenizer_bytes(j->tokenizer, id));
    clime_jw_close(w);
}

void clime_openai_write_prompt_logprobs(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_openai_request *r = o->job->endpoint;
    if (r->prompt_logprobs < 0) return;
    clime_jw_key(w, "prompt_logprobs");
    clime_jw_array(w);
    for (int i = 0; i < o->n_prompt; i++) {
        int at = i - o->prompt_first;
        const struct clime_lp_extra *x = o->prompt_extra && at >= 0 ? o->prompt_extra[at] : NULL;
        if (at < 0 || at >= o->n_prompt_logp) { /* the first token has no score */
            clime_jw_null(w);
            continue;
        }
        clime_jw_object(w);
        write_alternative(w, o->job, o->ids[i], o->prompt_logp[at], x ? x->rank : 0);
        for (int k = 0; x && k < x->n_top && k < r->prompt_logprobs; k++)
            if (x->at[k].id != o->ids[i]) write_alternative(w, o->job, x->at[k].id, x->at[k].logp, k + 1);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}
