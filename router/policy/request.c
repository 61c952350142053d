/* Parser for a request's cost, model and pages (request.h). Called by the proxy on HTTP threads, once a request.
 *
 * Sums are doubles: exact below 2^53, and no number from a client can overflow them. */
#include "router/policy/request.h"

#include "common/hash.h"
#include "common/json/scan.h"

enum { BYTES_A_TOKEN = 4, DEFAULT_NEW_TOKENS = 128 };
#define COST_MAX ((int64_t)1 << 40)

struct limits { /* one prompt's sampling parameters that affect cost */
    double new_tokens, n;
};

struct reading {
    struct clime_route_request *rq;
    double prompt_tokens;
    int64_t n_prompts;
    bool listed;     /* prompts are in a list, and so will the answers be */
    uint64_t so_far; /* hash of the first prompt so far */
    int64_t n_ids;   /* its tokens so far */
    int64_t mark;    /* page with the next mark */
    struct limits common;
    int64_t n_own;               /* prompts with their own sampling parameters, as a list; 0 = common applies to all */
    double own_n, own_generated; /* sums over those: n, and n times what may be generated */
};

static double generated(struct limits l) {
    return (l.n > 0 ? l.n : 1) * (1 + l.new_tokens);
}

/* ---- the prompt ---- */

static void end_page(struct reading *r) {
    if (r->rq->n_pages < CLIME_ROUTE_PAGES) r->rq->pages[r->rq->n_pages++] = r->so_far;
    r->mark = clime_route_next_page(r->mark);
}

static void add_id(struct reading *r, struct clime_str number) {
    if (r->rq->n_pages == CLIME_ROUTE_PAGES) return;
    r->so_far = clime_hash_bytes(number.ptr, number.len, r->so_far);
    if (++r->n_ids == r->mark * CLIME_ROUTE_PAGE_TOKENS) end_page(r);
}

static void add_text(struct reading *r, struct clime_str text) {
    const size_t page = CLIME_ROUTE_PAGE_TOKENS * BYTES_A_TOKEN;
    size_t at = 0, end;
    while (r->rq->n_pages < CLIME_ROUTE_PAGES && (end = (size_t)r->mark * page) <= text.len) {
        r->so_far = clime_hash_bytes(text.ptr + at, end - at, r->so_far);
        at = end;
        end_page(r);
    }
}

/* Tokens of one prompt: a text or a list of ids. paged: hash its pages. */
static double count_tokens(struct clime_json *j, struct reading *r, bool paged) {
    struct clime_str s = {"", 0};
    double n = 0;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_STRING:
        if (clime_json_string(j, &s) && paged) add_text(r, s);
        return (double)(s.len / BYTES_A_TOKEN + 1);
    case CLIME_JSON_ARRAY:
        for (clime_json_array(j); clime_json_item(j);) n += count_tokens(j, r, paged);
        return n;
    case CLIME_JSON_NUMBER:
        if (clime_json_skip(j, &s) && paged) add_id(r, s);
        return 1;
    default:
        return clime_json_skip(j, &s) ? (double)(s.len / BYTES_A_TOKEN) : 0;
    }
}

/* A prompt, or a list of them: an array whose items are texts or arrays. */
static void read_prompts(struct clime_json *j, struct reading *r) {
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) {
        r->prompt_tokens += count_tokens(j, r, r->n_prompts == 0);
        r->n_prompts++;
        return;
    }
    int64_t n_lists = 0;
    for (clime_json_array(j); clime_json_item(j);) {
        enum clime_json_kind kind = clime_json_peek(j);
        bool first = r->n_prompts == 0 && n_lists == 0;
        n_lists += kind == CLIME_JSON_ARRAY || kind == CLIME_JSON_STRING;
        r->prompt_tokens += count_tokens(j, r, first);
    }
    r->listed = r->listed || n_lists > 0;
    r->n_prompts += n_lists ? n_lists : 1;
}

/* A conversation grows by appending, so its JSON is paged like a text, without the closing bracket. */
static void read_messages(struct clime_json *j, struct reading *r) {
    struct clime_str raw;
    if (!clime_json_skip(j, &raw)) return;
    r->prompt_tokens += (double)(raw.len / BYTES_A_TOKEN);
    if (r->n_prompts++ == 0 && raw.len) add_text(r, (struct clime_str){raw.ptr, raw.len - 1});
}

/* ---- what it may generate ---- */

static void read_count(struct clime_json *j, double *out) {
    double v;
    if (clime_json_peek(j) != CLIME_JSON_NUMBER)
        clime_json_skip(j, NULL);
    else if (clime_json_double(j, &v) && v >= 0 && v < 1e9)
        *out = v;
}

static bool read_limit(struct clime_json *j, struct clime_str key, struct limits *l) {
    if (clime_str_is(key, "max_new_tokens") || clime_str_is(key, "max_tokens") ||
        clime_str_is(key, "max_completion_tokens"))
        read_count(j, &l->new_tokens);
    else if (clime_str_is(key, "n"))
        read_count(j, &l->n);
    else
        return false;
    return true;
}

static void read_params(struct clime_json *j, struct limits *l) {
    struct clime_str key;
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) {
        clime_json_skip(j, NULL);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!read_limit(j, key, l)) clime_json_skip(j, NULL);
}

static void read_own_params(struct clime_json *j, struct reading *r) {
    for (clime_json_array(j); clime_json_item(j);) {
        struct limits own = {DEFAULT_NEW_TOKENS, 1};
        read_params(j, &own);
        r->n_own++;
        r->own_n += own.n > 0 ? own.n : 1;
        r->own_generated += generated(own);
    }
}

static bool is_prompt(struct clime_str key) {
    return clime_str_is(key, "input_ids") || clime_str_is(key, "text") || clime_str_is(key, "prompt") ||
           clime_str_is(key, "token_ids");
}

/* "session_id", or in SGLang's gateways {"session_params": {"session_id"}}; a header takes precedence. */
static bool read_session(struct clime_json *j, struct clime_str key, struct reading *r) {
    enum clime_json_kind kind = clime_json_peek(j);
    if (clime_str_is(key, "session_id") && kind == CLIME_JSON_STRING) {
        clime_json_string(j, r->rq->session.len ? &(struct clime_str){0} : &r->rq->session);
        return true;
    }
    if (!clime_str_is(key, "session_params") || kind != CLIME_JSON_OBJECT) return false;
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (clime_str_is(key, "session_params") || !read_session(j, key, r)) clime_json_skip(j, NULL);
    return true;
}

static void read_flag(struct clime_json *j, bool *out) {
    if (clime_json_peek(j) == CLIME_JSON_BOOL)
        clime_json_bool(j, out);
    else
        clime_json_skip(j, NULL);
}

static bool is_rid(struct clime_str key) {
    return clime_str_is(key, "rid") || clime_str_is(key, "request_id");
}

static void read_members(struct clime_json *j, struct reading *r) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        enum clime_json_kind kind = clime_json_peek(j);
        if (read_limit(j, key, &r->common) || read_session(j, key, r)) continue;
        if (clime_str_is(key, "sampling_params") && kind == CLIME_JSON_ARRAY)
            read_own_params(j, r);
        else if (clime_str_is(key, "sampling_params"))
            read_params(j, &r->common);
        else if (clime_str_is(key, "model") && kind == CLIME_JSON_STRING)
            clime_json_string(j, &r->rq->model);
        else if (is_rid(key))
            clime_json_skip(j, &r->rq->rids);
        else if (clime_str_is(key, "stream"))
            read_flag(j, &r->rq->stream);
        else if (is_prompt(key))
            read_prompts(j, r);
        else if (clime_str_is(key, "messages"))
            read_messages(j, r);
        else
            clime_json_skip(j, NULL);
    }
}

static double output_of(const struct reading *r) {
    return r->n_own ? r->own_generated : (double)(r->n_prompts ? r->n_prompts : 1) * generated(r->common);
}

static double prompts_of(const struct reading *r) {
    double n = r->n_own ? r->own_n / (double)r->n_own : r->common.n > 0 ? r->common.n : 1;
    return r->prompt_tokens * n;
}

void clime_route_request_read(struct clime_route_request *rq, struct clime_str session, struct clime_str body,
                              struct clime_arena *arena) {
    struct clime_error e;
    struct clime_json j;
    *rq = (struct clime_route_request){.session = session, .cost = (int64_t)body.len / BYTES_A_TOKEN + 1};
    struct reading r = {.rq = rq, .mark = 1, .common = {DEFAULT_NEW_TOKENS, 1}};
    clime_json_init(&j, body.ptr, body.len, arena, &e);
    if (clime_json_peek(&j) != CLIME_JSON_OBJECT) return;
    read_members(&j, &r);
    if (!clime_json_end(&j)) {
        rq->n_pages = 0;
        return;
    }
    /* The model is hashed last, as it may follow the prompt in the body. */
    for (int i = 0; i < rq->n_pages; i++) rq->pages[i] = clime_hash_bytes(rq->model.ptr, rq->model.len, rq->pages[i]);
    rq->single = r.n_prompts == 1 && r.n_own == 0 && r.common.n == 1 && !r.listed;
    double output = output_of(&r), cost = prompts_of(&r) + output;
    rq->cost = cost < (double)COST_MAX ? (int64_t)cost : COST_MAX;
    rq->output = output < (double)COST_MAX ? (int64_t)output : COST_MAX;
    rq->prompt = (int64_t)r.prompt_tokens; /* bounded by the body's size */
}
