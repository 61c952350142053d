/* Request and reply of /generate (see generate.h). Called by the client's threads.
 *
 * Invariant: ids and log-probabilities come only from output_token_logprobs, so they always match; text is never
 * tokenised. A log-probability is read with strtof from the server's digits: reading a double and rounding would be
 * wrong in the last bit about once in 2^29 numbers, and the gap must be exactly 0.
 */
#include "trainer/rollout/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/sample/experts.h"
#include "trainer/sample/label.h"

#define MAX_EVENT CLIME_GENERATE_MAX_REPLY /* the last event has the experts of all positions */

static void write_sampling(struct clime_jw *w, const struct clime_request *r) {
    const struct clime_sampling_options *s = r->sampling;
    clime_jw_object(w);
    clime_jw_put_double(w, "temperature", s->temperature);
    clime_jw_put_double(w, "top_p", s->top_p);
    clime_jw_put_int(w, "top_k", s->top_k);
    clime_jw_put_int(w, "max_new_tokens", clime_sampling_room(s, r->sample->n_prompt) - r->sample->n_response);
    if (s->min_new_tokens) clime_jw_put_int(w, "min_new_tokens", s->min_new_tokens);
    if (s->stop.n) {
        clime_jw_key(w, "stop");
        clime_jw_array(w);
        for (int i = 0; i < s->stop.n; i++) clime_jw_strz(w, s->stop.items[i]);
        clime_jw_close(w);
    }
    if (s->stop_token_ids.n) {
        clime_jw_key(w, "stop_token_ids");
        clime_jw_array(w);
        for (int i = 0; i < s->stop_token_ids.n; i++) clime_jw_raw(w, clime_str_of(s->stop_token_ids.items[i]));
        clime_jw_close(w);
    }
    clime_jw_put_bool(w, "skip_special_tokens", s->skip_special_tokens);
    clime_jw_put_bool(w, "no_stop_trim", true);
    clime_jw_put_bool(w, "spaces_between_special_tokens", false);
    clime_jw_put_uint(w, "sampling_seed", r->sample->seed);
    clime_jw_close(w);
}

/* First position whose experts are requested; earlier ones are known. */
static int32_t experts_from(const struct clime_request *r) {
    const struct clime_sample *s = r->sample;
    return s->experts ? s->n_prompt + s->n_response - 1 : r->experts_from;
}

void clime_generate_body(const struct clime_request *r, struct clime_buf *out) {
    struct clime_jw w;
    char rid[128];
    snprintf(rid, sizeof rid, "%s.%d", r->rid, r->n_tries);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "rid", rid);
    clime_jw_key(&w, "input_ids");
    clime_jw_array(&w);
    for (int i = 0; i < r->sample->n_prompt + r->sample->n_response; i++) clime_jw_int(&w, r->sample->ids[i]);
    clime_jw_close(&w);
    clime_jw_key(&w, "sampling_params");
    write_sampling(&w, r);
    clime_jw_put_bool(&w, "return_logprob", true);
    if (clime_generate_streams(r)) {
        clime_jw_put_bool(&w, "stream", true);
        clime_jw_key(&w, "incremental_streaming_output"); /* each event has only new tokens */
        clime_jw_bool(&w, true);
    }
    if (r->sampling->kept) clime_jw_put_bool(&w, "return_sampling_mask", true);
    if (r->sampling->routing) clime_jw_put_bool(&w, "return_routing_hashes", true);
    if (r->sampling->experts) {
        clime_jw_put_bool(&w, "return_routed_experts", true);
        clime_jw_put_int(&w, "routed_experts_start_len", experts_from(r));
    }
    clime_jw_close(&w);
}

/* ---- reply ---- */

/* The run's name, the first part of the rid. */
static struct clime_str run_of(const struct clime_request *r) {
    return (struct clime_str){r->rid, strcspn(r->rid, "/")};
}

struct reply {
    int32_t *ids;
    float *logp;
    int n, size;
    struct clime_buf kept_n, kept, kept_logp; /* of uint32_t, int32_t and float */
    uint32_t *routing;
    int n_routing, size_routing;
    struct clime_str experts; /* base64 */
    struct clime_str finish;  /* raw JSON */
    char finish_type[16];
    struct clime_str run;           /* run whose weights are requested */
    struct clime_version_run *runs; /* [n_runs] version -1 = another run's label */
    int n_runs;
    struct clime_str odd; /* such a label */
    int32_t first_kept;   /* first token whose context has KV of older weights; -1 = none */
    int64_t completion_tokens, cached_tokens;
    struct clime_str device;
};

static void read_tokens(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        int64_t id = -1;
        struct clime_str digits = {0};
        clime_json_array(j);
        for (int k = 0; clime_json_item(j); k++) {
            if (k == 0)
                clime_json_number_text(j, &digits);
            else if (k == 1)
                clime_json_int(j, 0, INT32_MAX, &id);
            else
                clime_json_skip(j, NULL);
        }
        if (id < 0) clime_json_bad(j, "a token without its log-probability and id");
        if (j->failed) return;
        if (p->n == p->size) {
            p->size = p->size ? 2 * p->size : 256;
            p->ids = xrealloc(p->ids, (size_t)p->size * sizeof *p->ids);
            p->logp = xrealloc(p->logp, (size_t)p->size * sizeof *p->logp);
        }
        p->ids[p->n] = (int32_t)id;
        p->logp[p->n] = strtof(digits.ptr, NULL); /* a number in JSON text always ends at ',' or ']' */
        if (!(p->logp[p->n] <= 0) || !isfinite(p->logp[p->n])) {
            clime_json_bad(j, "a log-probability of " CLIME_STR_FMT, CLIME_STR_ARG(digits));
            return;
        }
        p->n++;
    }
}

static void read_routing(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        int64_t hash = 0;
        if (!clime_json_int(j, 0, UINT32_MAX, &hash)) return;
        if (p->n_routing == p->size_routing) {
            p->size_routing = p->size_routing ? 2 * p->size_routing : 256;
            p->routing = xrealloc(p->routing, (size_t)p->size_routing * sizeof *p->routing);
        }
        p->routing[p->n_routing++] = (uint32_t)hash;
    }
}

/* Reads a set per token: ascending ids. */
static void read_sets(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        uint32_t n = 0;
        int64_t id = 0, last = -1;
        for (clime_json_array(j); clime_json_item(j); last = id, n++) {
            if (!clime_json_int(j, 0, INT32_MAX, &id)) return;
            if (id <= last) clime_json_bad(j, "a token's set whose ids do not ascend");
            clime_buf_add(&p->kept, &(int32_t){(int32_t)id}, sizeof(int32_t));
        }
        clime_buf_add(&p->kept_n, &n, sizeof n);
    }
}

static void read_set_logp(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_str digits = {0};
        clime_json_number_text(j, &digits);
        if (j->failed) return;
        const float x = strtof(digits.ptr, NULL);
        if (!(x <= 0) || !isfinite(x)) clime_json_bad(j, "a token's log-probability over its set is none");
        clime_buf_add(&p->kept_logp, &x, sizeof x);
    }
}

static void read_versions(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_str label = {0};
        int64_t n = 0;
        clime_json_array(j);
        for (int k = 0; clime_json_item(j); k++) {
            if (k == 0)
                clime_json_string(j, &label);
            else if (k == 1)
                clime_json_int(j, 1, INT32_MAX, &n);
            else
                clime_json_skip(j, NULL);
        }
        if (n == 0) clime_json_bad(j, "a version without its number of tokens");
        if (j->failed) return;
        p->runs = xrealloc(p->runs, (size_t)(p->n_runs + 1) * sizeof *p->runs);
        p->runs[p->n_runs++] = (struct clime_version_run){clime_label_version(label, p->run), (int32_t)n};
        if (p->runs[p->n_runs - 1].version < 0) p->odd = label;
    }
}

static void read_kept(struct clime_json *j, struct reply *p) {
    for (clime_json_array(j); clime_json_item(j);) {
        int64_t first = 0;
        clime_json_array(j);
        for (int k = 0; clime_json_item(j); k++)
            k == 0 ? clime_json_int(j, 0, INT32_MAX, &first) : clime_json_skip(j, NULL);
        if (p->first_kept < 0) p->first_kept = (int32_t)first;
    }
}

static void read_finish(struct clime_json *j, struct reply *p) {
    clime_json_skip(j, &p->finish);
    if (j->failed) return;
    struct clime_json in;
    struct clime_error e = {0};
    struct clime_str key, type = {0};
    clime_json_init(&in, p->finish.ptr, p->finish.len, j->arena, &e);
    for (clime_json_object(&in); clime_json_key(&in, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(&in, &type);
        else
            clime_json_skip(&in, NULL);
    }
    snprintf(p->finish_type, sizeof p->finish_type, CLIME_STR_FMT, CLIME_STR_ARG(type));
}

static void read_meta(struct clime_json *j, struct reply *p) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "output_token_logprobs"))
            read_tokens(j, p);
        else if (clime_str_is(key, "finish_reason"))
            read_finish(j, p);
        else if (clime_str_is(key, "token_versions"))
            read_versions(j, p);
        else if (clime_str_is(key, "kept_kv"))
            read_kept(j, p);
        else if (clime_str_is(key, "output_token_sampling_mask"))
            read_sets(j, p);
        else if (clime_str_is(key, "output_token_sampling_logprobs"))
            read_set_logp(j, p);
        else if (clime_str_is(key, "routing_hashes"))
            read_routing(j, p);
        else if (clime_str_is(key, "routed_experts"))
            clime_json_string(j, &p->experts);
        else if (clime_str_is(key, "device_name"))
            clime_json_string(j, &p->device);
        else if (clime_str_is(key, "completion_tokens"))
            clime_json_int(j, 0, INT32_MAX, &p->completion_tokens);
        else if (clime_str_is(key, "cached_tokens"))
            clime_json_int(j, 0, INT32_MAX, &p->cached_tokens);
        else
            clime_json_skip(j, NULL);
    }
}

/* Adds the experts of the positions in the reply. An aborted request may lack those of a row to be recomputed; all are
 * requested again when the sample continues. */
static enum clime_err add_experts(struct clime_request *r, const struct reply *p, bool aborted, struct clime_error *e) {
    const struct clime_config *c = r->sampling->experts;
    struct clime_sample *s = r->sample;
    if (p->n == 0) return CLIME_OK;
    const int from = experts_from(r), n = s->n_prompt + s->n_response + p->n - 1 - from;
    const size_t each = (size_t)clime_experts_bytes(c), had = s->experts ? (size_t)from * each : 0;
    uint8_t *all = xmalloc(had + (size_t)n * each + 1);
    enum clime_err rc = clime_experts_read(c, p->experts, n, all + had, e);
    if (!rc && had) memcpy(all, s->experts, had);
    if (rc) {
        free(all);
        all = NULL;
    }
    if (rc && !aborted) return rc;
    free(s->experts);
    s->experts = all;
    s->expert_bytes = (int32_t)each;
    return CLIME_OK;
}

/* Appends the reply's tokens to the sample's earlier ones. */
static void add_tokens(const struct clime_request *r, const struct reply *p) {
    struct clime_sample *s = r->sample;
    size_t n = (size_t)p->n, old = (size_t)s->n_response, np = (size_t)s->n_prompt;
    s->ids = xrealloc(s->ids, (np + old + n) * sizeof *s->ids);
    memcpy(s->ids + np + old, p->ids, n * sizeof *s->ids);
    s->logp = xrealloc(s->logp, (old + n) * sizeof *s->logp);
    memcpy(s->logp + old, p->logp, n * sizeof *s->logp);
    if (r->sampling->kept) {
        const size_t had = (size_t)s->n_kept * sizeof *s->kept, unknown = s->kept_n ? 0 : old;
        s->kept_n = xrealloc(s->kept_n, (old + n) * sizeof *s->kept_n);
        memset(s->kept_n, 0, unknown * sizeof *s->kept_n); /* from a run without sets; check_samples rejects it */
        memcpy(s->kept_n + old, p->kept_n.data, n * sizeof *s->kept_n);
        s->kept_logp = xrealloc(s->kept_logp, (old + n) * sizeof *s->kept_logp);
        memset(s->kept_logp, 0, unknown * sizeof *s->kept_logp);
        memcpy(s->kept_logp + old, p->kept_logp.data, n * sizeof *s->kept_logp);
        s->kept = xrealloc(s->kept, had + p->kept.len);
        memcpy((char *)s->kept + had, p->kept.data, p->kept.len);
        s->n_kept += (int64_t)(p->kept.len / sizeof *s->kept);
    }
    if (p->n_routing || s->routing) { /* missing values are unknown */
        bool had = s->routing != NULL;
        s->routing = xrealloc(s->routing, (old + n) * sizeof *s->routing);
        if (!had) memset(s->routing, 0, old * sizeof *s->routing);
        if (p->n_routing)
            memcpy(s->routing + old, p->routing, n * sizeof *s->routing);
        else
            memset(s->routing + old, 0, n * sizeof *s->routing);
    }
    s->mask = xrealloc(s->mask, old + n);
    memset(s->mask + old, 1, n);
    if (p->first_kept >= 0 && !s->mixed_kv) s->mixed_kv = s->n_response + p->first_kept + 1;
    s->n_response += (int32_t)n;
    s->versions = xrealloc(s->versions, (size_t)(s->n_versions + p->n_runs) * sizeof *s->versions);
    for (int i = 0; i < p->n_runs; i++)
        if (s->n_versions > 0 && s->versions[s->n_versions - 1].version == p->runs[i].version)
            s->versions[s->n_versions - 1].n += p->runs[i].n;
        else
            s->versions[s->n_versions++] = p->runs[i];
}

static void fill_sample(struct clime_request *r, const struct reply *p, enum clime_sample_status status) {
    struct clime_sample *s = r->sample;
    if (p->n) add_tokens(r, p);
    s->status = status;
    free(s->finish);
    s->finish = xstrndup(p->finish.ptr, p->finish.len);
    s->cached_tokens = (int32_t)p->cached_tokens;
    if (p->device.len) {
        free(s->device);
        s->device = xstrndup(p->device.ptr, p->device.len < 64 ? p->device.len : 64);
    }
    s->temperature = r->sampling->temperature < 1e-6 ? 1.0f : (float)r->sampling->temperature;
}

/* Checks that the tokens' versions are ones pushed since the request, in order. */
static bool is_stale(const struct clime_request *r, const struct reply *p, struct clime_error *e) {
    int64_t newest = r->newest ? atomic_load(r->newest) : r->version, least = r->version;
    for (int i = 0; i < p->n_runs; least = p->runs[i++].version) {
        int64_t v = p->runs[i].version;
        if (v >= least && v <= newest) continue;
        const char *later = newest > r->version ? " or later" : "";
        if (v < 0)
            clime_fail(
                e, CLIME_ERR_UNAVAILABLE, "sampled by weights \"%.*s\", wanted version %" PRId64 "%s of run %.*s",
                (int)(p->odd.len < 200 ? p->odd.len : 200), p->odd.ptr, r->version, later, (int)p->run.len, p->run.ptr);
        else
            clime_fail(e, CLIME_ERR_UNAVAILABLE, "sampled by weights of version %" PRId64 ", wanted %" PRId64 "%s", v,
                       r->version, later);
        return true;
    }
    return false;
}

static int64_t versioned(const struct reply *p) {
    int64_t n = 0;
    for (int i = 0; i < p->n_runs; i++) n += p->runs[i].n;
    return n;
}

/* Checks that each token is in its set. */
static enum clime_err check_sets(const struct clime_request *r, const struct reply *p, struct clime_error *e) {
    const uint32_t *len = (const void *)p->kept_n.data;
    const int32_t *id = (const void *)p->kept.data;
    if (p->kept_n.full || p->kept.full || p->kept_logp.full)
        return clime_fail(e, CLIME_ERR_LIMIT, "the sets that its tokens were drawn from are too large");
    if (!r->sampling->kept) return CLIME_OK;
    if (p->kept_n.len / sizeof *len != (size_t)p->n || p->kept_logp.len / sizeof(float) != (size_t)p->n)
        return clime_fail(e, CLIME_ERR_INTERNAL,
                          "the server says of %zu of %d tokens what they were drawn from (output_token_sampling_mask), "
                          "which --rollout-top-p and --rollout-top-k need",
                          p->kept_n.len / sizeof *len, p->n);
    for (int i = 0; i < p->n; id += len[i++]) {
        bool has = false;
        for (uint32_t k = 0; k < len[i]; k++) has = has || id[k] == p->ids[i];
        if (!has) return clime_fail(e, CLIME_ERR_INTERNAL, "token %d, %d, is not in its set", i, p->ids[i]);
    }
    return CLIME_OK;
}

static enum clime_generate_outcome judge(struct clime_request *r, const struct reply *p, struct clime_error *e) {
    bool aborted = !strcmp(p->finish_type, "abort");
    int64_t room = clime_sampling_room(r->sampling, r->sample->n_prompt) - r->sample->n_response;
    if (aborted && !clime_request_stopped(r)) {
        clime_fail(e, CLIME_ERR_ABORTED, "the server aborted it: " CLIME_STR_FMT, CLIME_STR_ARG(p->finish));
        return CLIME_GENERATE_ABORTED;
    }
    if (is_stale(r, p, e)) return CLIME_GENERATE_STALE;
    if (!aborted && strcmp(p->finish_type, "stop") && strcmp(p->finish_type, "length")) {
        clime_fail(e, CLIME_ERR_INTERNAL, "unknown finish_reason \"%s\"", p->finish_type);
        return CLIME_GENERATE_BROKEN;
    }
    if ((p->n == 0 && !aborted) || p->n != p->completion_tokens || p->n > room) {
        clime_fail(e, CLIME_ERR_INTERNAL, "%d log-probabilities for %" PRId64 " tokens", p->n, p->completion_tokens);
        return CLIME_GENERATE_BROKEN;
    }
    if (versioned(p) != p->n || p->first_kept >= p->n) {
        clime_fail(e, CLIME_ERR_INTERNAL, "token_versions and kept_kv are not of its %d tokens", p->n);
        return CLIME_GENERATE_BROKEN;
    }
    if (p->n_routing && p->n_routing != p->n) {
        clime_fail(e, CLIME_ERR_INTERNAL, "%d routing hashes for %d tokens", p->n_routing, p->n);
        return CLIME_GENERATE_BROKEN;
    }
    if (check_sets(r, p, e)) return CLIME_GENERATE_BROKEN;
    if (r->sampling->experts && add_experts(r, p, aborted, e)) return CLIME_GENERATE_BROKEN;
    fill_sample(r, p,
                aborted                          ? CLIME_SAMPLE_ABORTED
                : strcmp(p->finish_type, "stop") ? CLIME_SAMPLE_TRUNCATED
                                                 : CLIME_SAMPLE_COMPLETED);
    return CLIME_GENERATE_DONE;
}

static struct reply new_reply(const struct clime_request *r) {
    struct reply p = {.run = run_of(r), .completion_tokens = -1, .first_kept = -1};
    clime_buf_init(&p.kept_n, MAX_EVENT);
    clime_buf_init(&p.kept, MAX_EVENT);
    clime_buf_init(&p.kept_logp, MAX_EVENT);
    return p;
}

static void reply_free(struct reply *p) {
    clime_buf_free(&p->kept_n);
    clime_buf_free(&p->kept);
    clime_buf_free(&p->kept_logp);
    free(p->routing);
    free(p->ids);
    free(p->runs);
    free(p->logp);
}

enum clime_generate_outcome clime_generate_read(struct clime_request *r, struct clime_str reply,
                                                struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key;
    struct reply p = new_reply(r);
    enum clime_generate_outcome out = CLIME_GENERATE_BROKEN;
    clime_arena_init(&a, reply.len + 4096);
    clime_json_init(&j, reply.ptr, reply.len, &a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "meta_info"))
            read_meta(&j, &p);
        else
            clime_json_skip(&j, NULL);
    }
    if (clime_json_end(&j))
        out = judge(r, &p, e);
    else
        clime_fail(e, CLIME_ERR_INTERNAL, "the reply of /generate: %s", je.msg);
    reply_free(&p);
    clime_arena_free(&a);
    return out;
}

/* ---- stream of events ---- */

struct clime_generate_stream {
    struct clime_request *r;
    struct clime_buf held;  /* incomplete event data */
    struct clime_buf event; /* the newest one's JSON: p points into it */
    struct clime_arena arena;
    struct reply p;
    bool begun, whole; /* data arrived; it is a plain JSON answer, not events */
    bool over;         /* ignore further data */
    enum clime_generate_outcome outcome;
    struct clime_error error;
};

bool clime_generate_streams(const struct clime_request *r) {
    return r->listener && r->listener->news;
}

struct clime_generate_stream *clime_generate_stream_new(struct clime_request *r) {
    struct clime_generate_stream *s = xcalloc(1, sizeof *s);
    s->r = r;
    s->p = new_reply(r);
    clime_buf_init(&s->held, MAX_EVENT);
    clime_buf_init(&s->event, MAX_EVENT);
    clime_arena_init(&s->arena, MAX_EVENT);
    s->outcome = CLIME_GENERATE_CUT;
    clime_fail(&s->error, CLIME_ERR_UNAVAILABLE, "the stream of /generate ends before the answer does");
    return s;
}

void clime_generate_stream_free(struct clime_generate_stream *s) {
    reply_free(&s->p);
    clime_arena_free(&s->arena);
    clime_buf_free(&s->event);
    clime_buf_free(&s->held);
    free(s);
}

static void end_stream(struct clime_generate_stream *s, enum clime_generate_outcome outcome,
                       const struct clime_error *e) {
    s->over = true;
    s->outcome = outcome;
    s->error = *e;
}

static bool tell(const struct clime_generate_stream *s) {
    const struct reply *p = &s->p;
    const struct clime_partial so_far = {.ids = p->ids,
                                         .logp = p->logp,
                                         .n = p->n,
                                         .cached_tokens = p->cached_tokens,
                                         .version = p->n_runs ? p->runs[p->n_runs - 1].version : s->r->version};
    return s->r->listener->news(s->r->listener->arg, &so_far);
}

/* Parses one event. Values for the whole answer replace earlier ones; tokens are appended. */
static void take_event(struct clime_generate_stream *s, struct clime_str data) {
    struct reply *p = &s->p;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_str key, error = {0};
    bool meta = false;
    if (clime_str_is(data, "[DONE]")) return;
    clime_buf_clear(&s->event);
    clime_buf_add(&s->event, data.ptr, data.len);
    clime_arena_free(&s->arena);
    p->finish = p->odd = p->device = p->experts = (struct clime_str){0};
    p->n_runs = 0;
    clime_json_init(&j, s->event.data, s->event.len, &s->arena, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "meta_info")) {
            meta = true;
            read_meta(&j, p);
        } else {
            clime_json_skip(&j, clime_str_is(key, "error") ? &error : NULL);
        }
    }
    struct clime_error e = {0};
    if (!clime_json_end(&j)) {
        clime_fail(&e, CLIME_ERR_INTERNAL, "an event of /generate: %s", je.msg);
        end_stream(s, CLIME_GENERATE_BROKEN, &e);
    } else if (!meta) {
        if (!error.len) error = clime_str_of("an event says nothing");
        clime_fail(&e, CLIME_ERR_UNAVAILABLE, "the stream of /generate broke off: %.*s",
                   (int)(error.len < 300 ? error.len : 300), error.ptr);
        end_stream(s, CLIME_GENERATE_ABORTED, &e);
    } else if (p->finish_type[0]) {
        enum clime_generate_outcome out = judge(s->r, p, &e);
        end_stream(s, out, &e);
    } else if (is_stale(s->r, p, &e)) {
        end_stream(s, CLIME_GENERATE_STALE, &e);
    } else if (p->n > clime_sampling_room(s->r->sampling, s->r->sample->n_prompt)) {
        clime_fail(&e, CLIME_ERR_INTERNAL, "/generate sends more tokens than were asked for");
        end_stream(s, CLIME_GENERATE_BROKEN, &e);
    } else if (!tell(s)) {
        clime_fail(&e, CLIME_ERR_UNAVAILABLE,
                   "a server was lost while it answered, and the weights that answer now say something else");
        end_stream(s, CLIME_GENERATE_BROKEN, &e);
    }
}

bool clime_generate_stream_feed(struct clime_generate_stream *s, const char *data, size_t len) {
    size_t from = s->held.len;
    if (s->over) return true;
    if (!s->begun && len > 0) s->whole = data[0] == '{';
    s->begun = s->begun || len > 0;
    clime_buf_add(&s->held, data, len);
    if (s->held.full) {
        struct clime_error e;
        clime_fail(&e, CLIME_ERR_LIMIT, "an event of /generate is too long");
        end_stream(s, CLIME_GENERATE_BROKEN, &e);
    }
    if (s->whole) return !s->over;
    size_t begin = 0;
    for (size_t at = from ? from - 1 : 0; at + 1 < s->held.len && !s->over; at++) {
        if (s->held.data[at] != '\n' || s->held.data[at + 1] != '\n') continue;
        struct clime_str event = {s->held.data + begin, at - begin};
        if (event.len > 6 && !memcmp(event.ptr, "data: ", 6))
            take_event(s, (struct clime_str){event.ptr + 6, event.len - 6});
        begin = at + 2;
        at++;
    }
    memmove(s->held.data, s->held.data + begin, s->held.len - begin);
    s->held.len -= begin;
    return !s->over || s->outcome == CLIME_GENERATE_DONE;
}

bool clime_generate_stream_over(const struct clime_generate_stream *s) {
    return s->over;
}

enum clime_generate_outcome clime_generate_stream_end(const struct clime_generate_stream *s, bool complete,
                                                      struct clime_error *e) {
    if (s->whole && complete && !s->over) return clime_generate_read(s->r, clime_buf_str(&s->held), e);
    if (s->outcome != CLIME_GENERATE_DONE) *e = s->error;
    return s->outcome;
}
