/* The body of /generate. Called by its handler on an HTTP worker; results are in the job's arena.
 *
 * `text` or `input_ids` decide whether a request is a batch, and may follow fields whose shape depends on that. So the
 * body is scanned twice: first to find the fields, then to read them. Scanning is cheap (10^5 ids in under a
 * millisecond), and each field's rules stay in one function. Members without a row in `members` go to fields.h.
 */
#include "server/api/generate_parse.h"

#include <stddef.h>
#include <stdio.h>

#include "server/api/id_list.h"
#include "server/job/fields.h"

struct fields { /* raw values; empty = absent or null */
    struct clime_str rid, text, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num,
        token_ids_logprob, return_text_in_logprobs, logprob_temperature, stream, extra_key, cache_salt,
        return_prompt_token_ids, return_sampling_mask, return_routing_hashes, return_routed_experts,
        routed_experts_start_len, model, resume, incremental_streaming_output;
};

#define RAW(field)                                                                                                     \
    { #field, CLIME_MEMBER_RAW, offsetof(struct fields, field) }

static const struct clime_member members[] = {
    RAW(rid),
    RAW(text),
    RAW(input_ids),
    RAW(sampling_params),
    RAW(return_logprob),
    RAW(logprob_start_len),
    RAW(top_logprobs_num),
    RAW(token_ids_logprob),
    RAW(return_text_in_logprobs),
    RAW(logprob_temperature),
    RAW(stream),
    RAW(extra_key),
    RAW(cache_salt),
    RAW(return_prompt_token_ids),
    RAW(return_sampling_mask),
    RAW(return_routing_hashes),
    RAW(return_routed_experts),
    RAW(routed_experts_start_len),
    RAW(model),
    RAW(resume),
    RAW(incremental_streaming_output),
};
static const struct clime_members own = {members, CLIME_COUNT(members)};

static const struct clime_fields body_fields = {.where = "/generate",
                                                .rows = {clime_fields_generate},
                                                .read = {&own},
                                                .elsewhere = &clime_sampling_members,
                                                .elsewhere_name = "sampling_params"};
static const struct clime_member vllm_rows[] = {
    /* vLLM's names */
    {"max_tokens", CLIME_MEMBER_INT, offsetof(struct clime_sampling_params, max_new_tokens), .min = 0,
     .max = INT32_MAX},
    {"min_tokens", CLIME_MEMBER_INT, offsetof(struct clime_sampling_params, min_new_tokens), .min = 0,
     .max = INT32_MAX},
};
static const struct clime_members vllm_members = {vllm_rows, CLIME_COUNT(vllm_rows)};
static const struct clime_fields params_fields = {
    .where = "sampling_params", .rows = {clime_fields_sampling}, .read = {&clime_sampling_members, &vllm_members}};

static bool find_fields(struct clime_generation *gen, struct fields *f, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(&own, &j, key, f)) clime_fields_other(&body_fields, gen->server->field_watch, &j, key);
    return clime_json_end(&j);
}

/* ---- values, one for all prompts or one for each --------------------------------------------------------- */

typedef bool read_fn(struct clime_json *j, struct clime_generation *gen, int prompt);

/* Calls read for each prompt, with the value itself or with the items of a list as long as the batch. list_is_value:
 * the value is itself a list, so only a list of lists is per prompt. */
static bool each_prompt(struct clime_generation *gen, struct clime_str raw, const char *name, bool list_is_value,
                        read_fn *read, struct clime_error *e) {
    struct clime_json j;
    int n = 0;
    if (raw.len == 0) return true;
    clime_json_init(&j, raw.ptr, raw.len, &gen->job->arena, e);
    bool list = clime_json_peek(&j) == CLIME_JSON_ARRAY;
    if (list && list_is_value) {
        struct clime_json in = j;
        clime_json_array(&in);
        list = clime_json_item(&in) && clime_json_peek(&in) == CLIME_JSON_ARRAY;
    }
    if (!list) {
        for (int i = 0; i < gen->n_prompts; i++) {
            clime_json_init(&j, raw.ptr, raw.len, &gen->job->arena, e);
            if (!read(&j, gen, i) || !clime_json_end(&j)) return clime_error_prefix(e, "%s", name), false;
        }
        return true;
    }
    for (clime_json_array(&j); clime_json_item(&j); n++) {
        if (n == gen->n_prompts) return clime_json_bad(&j, "%s has more items than there are prompts", name);
        if (!read(&j, gen, n)) return clime_error_prefix(e, "%s", name), false;
    }
    if (n < gen->n_prompts && !j.failed)
        return clime_json_bad(&j, "%s has %d items for %d prompts", name, n, gen->n_prompts);
    return clime_json_end(&j);
}

static bool read_rid(struct clime_json *j, struct clime_generation *gen, int i) {
    struct clime_str s;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_json_string(j, &s)) return false;
    if (s.len > CLIME_MAX_RID) return clime_json_bad(j, "a rid has at most %d bytes", CLIME_MAX_RID);
    gen->prompts[i].rid = s;
    gen->job->rids_given = gen->job->rids_given || s.len > 0;
    return true;
}

static bool read_salt(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_string(j, &gen->prompts[i].salt);
}

static bool read_wanted(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_bool(j, &gen->prompts[i].logp->wanted);
}

static bool read_mask(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_bool(j, &gen->prompts[i].logp->mask);
}

static bool read_start(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_int(j, -1, INT32_MAX, &gen->prompts[i].logp->start);
}

static bool read_top(struct clime_json *j, struct clime_generation *gen, int i) {
    int64_t n = 0;
    if (!clime_lenient_int(j, 0, CLIME_MAX_TOP_LOGPROBS, &n)) return false;
    gen->prompts[i].logp->top = (int)n;
    return true;
}

static bool read_chosen(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_id_list_chosen(j, gen->prompts[i].logp);
}

static bool read_logp_text(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_bool(j, &gen->prompts[i].logp->text);
}

static bool read_temperature(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_lenient_double(j, 1e-6, 1e6, &gen->prompts[i].logp->prompt_temperature);
}

static bool read_params(struct clime_json *j, struct clime_generation *gen, int i) {
    struct clime_sampling_params *p = gen->prompts[i].params;
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(&clime_sampling_members, j, key, p) && !clime_members_read(&vllm_members, j, key, p))
            clime_fields_other(&params_fields, gen->server->field_watch, j, key);
    return !j->failed;
}

/* ---- prompts ----------------------------------------------------------------------------------------------- */

static int count_items(struct clime_str raw, struct clime_arena *a, struct clime_error *e) {
    struct clime_json j;
    int n = 0;
    clime_json_init(&j, raw.ptr, raw.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j) && n <= CLIME_MAX_OUTPUTS; n++) clime_json_skip(&j, NULL);
    return n;
}

static bool read_text(struct clime_json *j, struct clime_generation *gen, int i) {
    gen->prompts[i].is_text = gen->prompts[i].add_special = true;
    return clime_json_string(j, &gen->prompts[i].text);
}

static bool read_ids(struct clime_json *j, struct clime_generation *gen, int i) {
    return clime_id_list_read(j, &gen->prompts[i].ids);
}

static enum clime_err read_prompts(struct clime_generation *gen, const struct fields *f, struct clime_error *e) {
    bool text = f->text.len > 0;
    struct clime_str raw = text ? f->text : f->input_ids;
    struct clime_json j;
    if (text == (f->input_ids.len > 0))
        return clime_fail(e, CLIME_ERR_INPUT, "give either text or input_ids%s", text ? ", not both" : "");
    clime_json_init(&j, raw.ptr, raw.len, &gen->job->arena, e);
    gen->job->is_list = clime_json_peek(&j) == CLIME_JSON_ARRAY;
    if (gen->job->is_list && !text) {
        clime_json_array(&j);
        gen->job->is_list = clime_json_item(&j) && clime_json_peek(&j) == CLIME_JSON_ARRAY;
    }
    int n = gen->job->is_list ? count_items(raw, &gen->job->arena, e) : 1;
    enum clime_err err = clime_generation_prompts(gen, n, e);
    if (err) return err;
    return each_prompt(gen, raw, text ? "text" : "input_ids", !text, text ? read_text : read_ids, e) ? CLIME_OK
                                                                                                     : e->code;
}

/* One options object for all prompts that share it: a batch with one sampling_params has one seed. */
static enum clime_err give_options(struct clime_generation *gen, bool shared, struct clime_error *e) {
    struct clime_arena *a = &gen->job->arena;
    gen->shared_params = shared;
    for (int i = 0; i < gen->n_prompts; i++) {
        struct clime_prompt *p = &gen->prompts[i];
        p->params = i > 0 && shared ? gen->prompts[0].params : clime_arena_alloc(a, sizeof *p->params);
        p->logp = clime_arena_alloc(a, sizeof *p->logp);
        if (!p->params || !p->logp) return clime_fail(e, CLIME_ERR_LIMIT, "the request takes too much memory");
        if (i == 0 || !shared) clime_sampling_defaults(p->params);
        *p->logp = (struct clime_logp_options){.start = -1, .prompt_temperature = 1};
    }
    return CLIME_OK;
}

/* A batch's single rid becomes rid_0, rid_1, ... as in SGLang; aborting rid, their prefix, ends them all. */
static enum clime_err number_rids(struct clime_generation *gen, struct clime_error *e) {
    for (int i = 0; i < gen->n_prompts; i++) {
        struct clime_str *rid = &gen->prompts[i].rid;
        if (rid->len == 0) return CLIME_OK; /* none set: each gets its own */
        char *z = clime_arena_alloc(&gen->job->arena, rid->len + 16);
        if (!z) return clime_fail(e, CLIME_ERR_LIMIT, "the request takes too much memory");
        int n = snprintf(z, rid->len + 16, CLIME_STR_FMT "_%d", CLIME_STR_ARG(*rid), i);
        *rid = (struct clime_str){z, (size_t)n};
        if (rid->len > CLIME_MAX_RID)
            return clime_fail(e, CLIME_ERR_INPUT, "a rid has at most %d bytes", CLIME_MAX_RID);
    }
    return CLIME_OK;
}

static bool read_flag(struct clime_str raw, const char *name, struct clime_arena *a, bool *out, struct clime_error *e) {
    struct clime_json j;
    if (raw.len == 0) return true;
    clime_json_init(&j, raw.ptr, raw.len, a, e);
    if (clime_json_bool(&j, out) && clime_json_end(&j)) return true;
    clime_error_prefix(e, "%s", name);
    return false;
}

/* As in SGLang, whose server also needs a start option for it. */
static enum clime_err read_choices(struct clime_generation *gen, const struct fields *f, struct clime_error *e) {
    struct clime_json j;
    struct clime_job *job = gen->job;
    int64_t from = 0;
    if (!read_flag(f->return_routed_experts, "return_routed_experts", &job->arena, &job->choices_wanted, e))
        return e->code;
    if (f->routed_experts_start_len.len > 0) {
        clime_json_init(&j, f->routed_experts_start_len.ptr, f->routed_experts_start_len.len, &job->arena, e);
        if (!clime_lenient_int(&j, 0, INT32_MAX, &from) || !clime_json_end(&j))
            return clime_error_prefix(e, "routed_experts_start_len");
    }
    job->choices_from = (int)from;
    if (!job->choices_wanted) return CLIME_OK;
    const struct clime_config *c = &gen->server->model->cfg;
    job->choices_width = c->L * c->router.k;
    if (!c->router.E) return clime_fail(e, CLIME_ERR_INPUT, "return_routed_experts: the model has no experts");
    if (!gen->server->opts.return_routed_experts)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "return_routed_experts needs a server with --enable-return-routed-experts");
    return CLIME_OK;
}

static enum clime_err check_model(struct clime_generation *gen, struct clime_str raw, struct clime_error *e) {
    struct clime_json j;
    struct clime_str name = {"", 0};
    if (raw.len == 0) return CLIME_OK;
    clime_json_init(&j, raw.ptr, raw.len, &gen->job->arena, e);
    if (!clime_json_string(&j, &name)) return clime_error_prefix(e, "model");
    return clime_generation_model(gen, name, e);
}

enum clime_err clime_generate_parse(struct clime_generation *gen, struct clime_generate_options *o,
                                    struct clime_error *e) {
    struct fields f = {0};
    enum clime_err err;
    if (!find_fields(gen, &f, e)) return e->code;
    if ((err = check_model(gen, f.model, e))) return err;
    if ((err = read_prompts(gen, &f, e))) return err;
    bool one_each = f.sampling_params.len > 0 && f.sampling_params.ptr[0] == '[';
    if ((err = give_options(gen, !one_each, e))) return err;
    if (one_each) {
        if (!each_prompt(gen, f.sampling_params, "sampling_params", false, read_params, e)) return e->code;
    } else if (f.sampling_params.len > 0) {
        struct clime_json j;
        clime_json_init(&j, f.sampling_params.ptr, f.sampling_params.len, &gen->job->arena, e);
        if (!read_params(&j, gen, 0) || !clime_json_end(&j)) return clime_error_prefix(e, "sampling_params");
    }
    const struct {
        struct clime_str raw;
        const char *name;
        bool list_is_value;
        read_fn *read;
    } fields[] = {{f.rid, "rid", false, read_rid},
                  {f.cache_salt, "cache_salt", false, read_salt},
                  {f.extra_key, "extra_key", false, read_salt},
                  {f.return_logprob, "return_logprob", false, read_wanted},
                  {f.logprob_start_len, "logprob_start_len", false, read_start},
                  {f.top_logprobs_num, "top_logprobs_num", false, read_top},
                  {f.token_ids_logprob, "token_ids_logprob", true, read_chosen},
                  {f.return_sampling_mask, "return_sampling_mask", false, read_mask},
                  {f.return_text_in_logprobs, "return_text_in_logprobs", false, read_logp_text},
                  {f.logprob_temperature, "logprob_temperature", false, read_temperature}};
    for (size_t i = 0; i < CLIME_COUNT(fields); i++)
        if (!each_prompt(gen, fields[i].raw, fields[i].name, fields[i].list_is_value, fields[i].read, e))
            return e->code;
    bool one_rid = f.rid.len > 0 && f.rid.ptr[0] == '"' && gen->n_prompts > 1;
    if (one_rid && (err = number_rids(gen, e))) return err;
    if (!read_flag(f.stream, "stream", &gen->job->arena, &gen->job->stream, e) ||
        !read_flag(f.return_prompt_token_ids, "return_prompt_token_ids", &gen->job->arena, &o->return_prompt_ids, e) ||
        !read_flag(f.return_routing_hashes, "return_routing_hashes", &gen->job->arena, &o->return_routing, e))
        return e->code;
    if (o->return_routing && !gen->server->model->cfg.router.E)
        return clime_fail(e, CLIME_ERR_INPUT, "return_routing_hashes: the model has no experts");
    if ((err = read_choices(gen, &f, e))) return err;
    gen->job->incremental = gen->server->opts.incremental_streaming_output;
    if (!read_flag(f.incremental_streaming_output, "incremental_streaming_output", &gen->job->arena,
                   &gen->job->incremental, e))
        return e->code;
    gen->resume = f.resume;
    gen->job->is_list = gen->job->is_list || gen->prompts[0].params->n > 1;
    return CLIME_OK;
}
