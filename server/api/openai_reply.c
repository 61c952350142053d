/* Reply pieces shared by both OpenAI endpoints. Writers run on the HTTP worker, or on the job's emitter for streams;
 * they read outputs only.
 */
#include <stdio.h>

#include "common/http/sse.h"
#include "server/api/generate_reply.h"
#include "server/api/openai.h"

void clime_openai_open(struct clime_jw *w, const struct clime_job *j, const char *object) {
    const struct clime_openai_request *r = j->endpoint;
    clime_jw_object(w);
    clime_jw_put_str(w, "id", j->outs[0].rid);
    clime_jw_put_strz(w, "object", object);
    clime_jw_put_int(w, "created", r->created);
    clime_jw_put_strz(w, "model", r->model_name);
    clime_jw_put_strz(w, "system_fingerprint", clime_engine_version(r->server->engine)->name);
}

struct clime_answer clime_openai_answer(const struct clime_output *o) {
    static const enum clime_answer_end ends[] = {[CLIME_FINISH_NONE] = CLIME_ANSWER_OPEN,
                                                 [CLIME_FINISH_STOP] = CLIME_ANSWER_STOP,
                                                 [CLIME_FINISH_LENGTH] = CLIME_ANSWER_LENGTH,
                                                 [CLIME_FINISH_ABORT] = CLIME_ANSWER_ABORT};
    const struct clime_openai_request *r = o->job->endpoint;
    bool ended = o->finish.type != CLIME_FINISH_NONE;
    return (struct clime_answer){.id = o->rid,
                                 .model = r->model_name,
                                 .created = r->created,
                                 .index = o->index,
                                 .parse = &o->parse,
                                 .text = clime_stop_text_safe(&o->text),
                                 .end = ends[o->finish.type],
                                 .matched = o->finish.matched_str,
                                 .status = o->finish.status,
                                 .message = o->finish.message,
                                 .n_prompt = o->n_prompt,
                                 .n_cached = o->cached_tokens,
                                 .n_out = (int64_t)o->out.len,
                                 .n_reasoning = ended ? clime_output_reasoning_tokens(o) : 0, /* scans all tokens */
                                 .weight_version = ended ? o->version->name : NULL,
                                 .custom = r->custom_tools,
                                 .tokens = clime_openai_tokens(o)};
}

void clime_openai_write_finish(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_answer a = clime_openai_answer(o);
    clime_jw_put_strz(w, "finish_reason", clime_chat_answer_finish(&a));
    clime_jw_key(w, "matched_stop");
    if (o->finish.type != CLIME_FINISH_STOP)
        clime_jw_null(w);
    else if (o->finish.matched_id >= 0)
        clime_jw_int(w, o->finish.matched_id);
    else
        clime_jw_str(w, o->finish.matched_str);
}

void clime_openai_write_usage(struct clime_jw *w, const struct clime_job *j) {
    int64_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
    for (int i = 0; i < j->n_outs; i++) {
        if (j->outs[i].sample == 0) { /* samples share their prompt */
            prompt += j->outs[i].n_prompt;
            cached += j->outs[i].cached_tokens;
        }
        completion += (int64_t)j->outs[i].out.len;
        reasoning += clime_output_reasoning_tokens(&j->outs[i]);
    }
    clime_chat_answer_usage(w, prompt, completion, cached, reasoning);
}

void clime_openai_write_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n) {
    clime_jw_key(w, key);
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) clime_jw_int(w, ids[i]);
    clime_jw_close(w);
}

void clime_openai_write_extras(struct clime_jw *w, const struct clime_openai_request *r, const struct clime_output *o,
                               size_t from, size_t to, bool prompt_ids, bool last) {
    if (prompt_ids && (r->return_token_ids || r->return_prompt_ids))
        clime_openai_write_ids(w, "prompt_token_ids", o->ids, (size_t)o->n_prompt);
    if (r->return_token_ids) clime_openai_write_ids(w, "token_ids", o->out.data + from, to - from);
    if (!last) return;
    clime_seed_write(w, o);
    if (r->return_meta_info) {
        clime_jw_key(w, "meta_info");
        clime_meta_info_write(w, o);
    }
}

void clime_openai_finish_call(struct clime_generation *gen, enum clime_err err, const struct clime_error *e,
                              void (*write)(struct clime_job *j, struct clime_buf *out)) {
    struct clime_openai_request *r = gen->job->endpoint;
    const struct clime_output *failed = err ? NULL : clime_generation_failed(gen);
    if (err) {
        clime_http_reply_err(gen->rq, e);
    } else if (!gen->job->stream && failed) {
        clime_http_reply_error(gen->rq, failed->finish.status, failed->finish.message);
    } else if (!gen->job->stream) {
        struct clime_buf body;
        clime_buf_init(&body, CLIME_MAX_REPLY);
        write(gen->job, &body);
        clime_reply_buf(gen->rq, 200, &body);
    }
    clime_generation_end(gen);
    clime_buf_free(&r->event);
}

void clime_openai_close_reply(struct clime_jw *w, const struct clime_job *j) {
    clime_answer_close(w, j->outs[0].version->name);
}

/* ---- streams ----------------------------------------------------------------------------------------------- */

void clime_openai_open_chunk(struct clime_jw *w, const struct clime_output *o, const char *object) {
    struct clime_openai_request *r = o->job->endpoint;
    clime_buf_clear(&r->event);
    clime_jw_init(w, &r->event);
    clime_openai_open(w, o->job, object);
    clime_jw_key(w, "choices");
    clime_jw_array(w);
    clime_jw_object(w);
    clime_jw_put_int(w, "index", o->index);
}

void clime_openai_send_chunk(struct clime_jw *w, struct clime_job *j, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    clime_jw_close(w);
    clime_jw_close(w);
    if (r->usage_always) {
        clime_openai_write_usage(w, j);
    } else if (r->usage_in_stream) {
        clime_jw_key(w, "usage");
        clime_jw_null(w);
    }
    clime_jw_close(w);
    clime_reply_event(sse, &r->event);
}

bool clime_openai_stream_failed(struct clime_openai_request *r, const struct clime_output *o, struct clime_buf *sse) {
    struct clime_jw w;
    if (o->finish.type != CLIME_FINISH_ABORT || o->finish.status < 500) return false;
    clime_buf_clear(&r->event);
    clime_jw_init(&w, &r->event);
    clime_jw_object(&w);
    clime_jw_key(&w, "error");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "object", "error");
    clime_jw_put_strz(&w, "message", o->finish.message);
    clime_jw_put_strz(&w, "type", "InternalServerError");
    clime_jw_key(&w, "param");
    clime_jw_null(&w);
    clime_jw_put_int(&w, "code", o->finish.status);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_sse_frame(sse, clime_buf_str(&r->event));
    return true;
}

void clime_openai_stream_end(struct clime_job *j, struct clime_buf *sse, const char *object) {
    struct clime_openai_request *r = j->endpoint;
    if (r->usage_in_stream) {
        struct clime_jw w;
        clime_buf_clear(&r->event);
        clime_jw_init(&w, &r->event);
        clime_openai_open(&w, j, object);
        clime_jw_key(&w, "choices");
        clime_jw_array(&w);
        clime_jw_close(&w);
        clime_openai_write_usage(&w, j);
        clime_jw_close(&w);
        clime_sse_frame(sse, clime_buf_str(&r->event));
    }
    clime_sse_frame(sse, clime_str_of("[DONE]"));
}
