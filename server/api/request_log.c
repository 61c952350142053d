/* The request log (see request_log.h), and POST /configure_logging. HTTP workers; the level is one atomic. A log line
 * holds 2 KB (common/log.h), so long values are truncated first and each line is complete JSON; level 3 is not
 * truncated.
 */
#include "server/api/request_log.h"

#include <stddef.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/job/fields.h"

#define SHOWN_BYTES 400 /* per text */
#define SHOWN_IDS 32    /* per prompt */
#define SHOWN_NAME 80   /* per name if the line would be too long */
#define LINE 1900

static void put_params(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_sampling_params *p = o->params;
    clime_jw_key(w, "sampling_params");
    clime_jw_object(w);
    clime_jw_put_int(w, "max_new_tokens", p->max_new_tokens);
    clime_jw_put_int(w, "min_new_tokens", p->min_new_tokens);
    clime_jw_put_double(w, "temperature", p->temperature);
    clime_jw_put_double(w, "top_p", p->top_p);
    clime_jw_put_int(w, "top_k", p->top_k);
    clime_jw_put_double(w, "min_p", p->min_p);
    clime_jw_put_double(w, "frequency_penalty", p->frequency_penalty);
    clime_jw_put_double(w, "presence_penalty", p->presence_penalty);
    clime_jw_put_double(w, "repetition_penalty", p->repetition_penalty);
    clime_jw_put_int(w, "n", p->n);
    clime_jw_put_int(w, "stop", p->n_stop);
    clime_jw_put_int(w, "stop_regex", p->n_stop_regex);
    clime_jw_put_int(w, "bad_words", p->n_bad_words);
    clime_jw_put_int(w, "logit_bias", p->n_bias);
    clime_jw_put_bool(w, "grammar", p->grammar.kind != CLIME_GRAMMAR_NONE);
    clime_jw_close(w);
}

static void put_ids(struct clime_jw *w, const char *key, const int32_t *ids, int64_t n) {
    clime_jw_key(w, key);
    clime_jw_array(w);
    for (int64_t i = 0; i < n; i++) clime_jw_int(w, ids[i]);
    clime_jw_close(w);
}

static void put_text(struct clime_jw *w, const struct clime_output *o, bool all) {
    struct clime_str text = clime_stop_text_safe(&o->text);
    if (text.len > SHOWN_BYTES && !all) text.len = SHOWN_BYTES;
    put_ids(w, "prompt_ids", o->ids, o->n_prompt > SHOWN_IDS && !all ? SHOWN_IDS : o->n_prompt);
    if (all) put_ids(w, "output_ids", o->out.data, (int64_t)o->out.len);
    clime_jw_put_str(w, "text", text);
}

static struct clime_str name_of(struct clime_str s, bool cut) {
    return cut && s.len > SHOWN_NAME ? (struct clime_str){s.ptr, SHOWN_NAME} : s;
}

static void write_line(struct clime_buf *out, const struct clime_http_request *rq, const struct clime_output *o,
                       int level) {
    static const char *const ends[] = {[CLIME_FINISH_NONE] = "none",
                                       [CLIME_FINISH_STOP] = "stop",
                                       [CLIME_FINISH_LENGTH] = "length",
                                       [CLIME_FINISH_ABORT] = "abort"};
    struct clime_str path = clime_http_path(rq), version = clime_str_of(o->version ? o->version->name : "");
    bool cut = level < CLIME_LOG_META;
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_str(&w, "rid", name_of(o->rid, cut));
    clime_jw_put_strz(&w, "request_id", clime_http_request_id(rq));
    clime_jw_put_str(&w, "path", name_of(path, cut));
    clime_jw_put_int(&w, "prompt_tokens", o->n_prompt);
    clime_jw_put_int(&w, "cached_tokens", o->cached_tokens);
    clime_jw_put_int(&w, "completion_tokens", (int64_t)o->out.len);
    clime_jw_put_strz(&w, "finish_reason", ends[o->finish.type]);
    clime_jw_put_str(&w, "weight_version", name_of(version, cut));
    clime_jw_put_uint(&w, "seed", o->seed);
    if (o->first_token_us) clime_jw_put_double(&w, "ttft", (double)(o->first_token_us - o->job->received_us) / 1e6);
    clime_jw_put_double(&w, "e2e_latency", (double)(o->finished_us - o->job->received_us) / 1e6);
    if (level >= CLIME_LOG_PARAMS) put_params(&w, o);
    if (level >= CLIME_LOG_TEXT) put_text(&w, o, level == CLIME_LOG_ALL);
    clime_jw_close(&w);
}

void clime_request_log(const struct clime_server *s, const struct clime_http_request *rq, const struct clime_job *j) {
    int level = atomic_load(&s->request_log);
    struct clime_buf line;
    if (level < CLIME_LOG_META) return;
    clime_buf_init(&line, CLIME_MAX_REPLY);
    for (int i = 0; i < j->n_outs; i++) {
        if (level == CLIME_LOG_ALL) {
            clime_buf_adds(&line, "request ");
            write_line(&line, rq, &j->outs[i], level);
            clime_log_whole(CLIME_LOG_INFO, line.data, line.len);
            clime_buf_clear(&line);
            continue;
        }
        for (int at = level; at >= CLIME_LOG_META - 1; at--) { /* escaping may lengthen text sixfold */
            clime_buf_clear(&line);
            write_line(&line, rq, &j->outs[i], at);
            if (line.len <= LINE) break;
        }
        LOG_INFO("request %s", line.data);
    }
    clime_buf_free(&line);
}

/* ---- /configure_logging ------------------------------------------------------------------------------------ */

struct ask {
    int64_t level; /* -1: unchanged */
    bool on, given;
};

static bool read_on(struct clime_json *j, void *object) {
    struct ask *ask = object;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    ask->given = true;
    return clime_lenient_bool(j, &ask->on);
}

void clime_handle_configure_logging(struct clime_http_request *rq, void *context) {
    static const struct clime_member rows[] = {
        {"log_requests", CLIME_MEMBER_CALL, .read = read_on},
        {"log_requests_level", CLIME_MEMBER_INT, offsetof(struct ask, level), .min = 0, .max = CLIME_LOG_ALL}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{"log_requests_format", "\"json\""}, {"log_level", NULL},
                                                {"dump_requests_folder", NULL},      {"dump_requests_threshold", NULL},
                                                {"crash_dump_folder", NULL},         {NULL, NULL}};
    static const struct clime_fields fields = {.where = "/configure_logging", .rows = {others}, .read = {&members}};
    struct clime_server *s = context;
    struct clime_str body = clime_http_body(rq);
    struct clime_error e = {0};
    struct ask ask = {.level = -1};
    struct clime_arena a;
    clime_arena_init(&a, body.len * 2 + 65536);
    if (clime_fields_read(&fields, s->field_watch, body, &a, &ask, &e)) {
        clime_http_reply_err(rq, &e);
    } else {
        if (ask.level >= 0) atomic_store(&s->request_log_level, (int)ask.level);
        bool on = ask.given ? ask.on : atomic_load(&s->request_log) >= CLIME_LOG_META;
        atomic_store(&s->request_log, on ? atomic_load(&s->request_log_level) : CLIME_LOG_NO_REQUESTS);
        clime_reply_success(rq, CLIME_OK, on ? "requests are logged" : "requests are not logged");
    }
    clime_arena_free(&a);
}
