/* Replay state of a stream (replay.h). Called by the relay on HTTP threads, for each event.
 *
 * Invariant: what is kept of an output is exactly what was sent to the client. A cumulative event is copied without
 * parsing: it repeats everything before it, and parsing would cost ten times the copy. */
#include "router/replay.h"

#include <stdlib.h>

#include "common/err.h"
#include "common/json/scan.h"
#include "common/json/write.h"

#define MOST_OUTPUTS 4096 /* per request, the servers' limit */
#define LARGEST ((size_t)16 << 20)
#define LARGEST_REQUEST ((size_t)1 << 30)

/* Growing lists of an incremental stream, by their names in meta_info; the first is at the top level. */
static const char *const list_names[] = {"output_ids",
                                         "output_token_logprobs",
                                         "output_top_logprobs",
                                         "output_token_ids_logprobs",
                                         "output_token_sampling_mask",
                                         "output_token_sampling_logprobs"};
enum { N_LISTS = CLIME_COUNT(list_names) };

struct clime_replay_output {
    struct clime_buf last;           /* its last event */
    struct clime_buf lists[N_LISTS]; /* without brackets */
    int64_t n_tokens;
    bool ended;  /* by its last event */
    bool passed; /* ended before the resumed stream began: the client has all of it */
};

void clime_replay_init(struct clime_replay *p, struct clime_replay_memory *memory) {
    *p = (struct clime_replay){.memory = memory};
}

static void forget(struct clime_replay *p) {
    for (int i = 0; i < p->n_outs; i++) {
        clime_buf_free(&p->outs[i].last);
        for (int k = 0; k < N_LISTS; k++) clime_buf_free(&p->outs[i].lists[k]);
    }
    free(p->outs);
    p->outs = NULL;
    p->n_outs = 0;
    atomic_fetch_sub(&p->memory->used, p->bytes);
    p->bytes = 0;
}

void clime_replay_free(struct clime_replay *p) {
    forget(p);
}

void clime_replay_lose(struct clime_replay *p) {
    forget(p);
    p->lost = true;
}

bool clime_replay_can_go_on(const struct clime_replay *p) {
    return p->kind != CLIME_REPLAY_NONE && !p->lost;
}

bool clime_replay_lacks_end(const struct clime_replay *p) {
    return clime_replay_can_go_on(p) && !p->done;
}

/* ---- parsing events ---- */

struct event { /* parsed fields of an event */
    struct clime_str lists[N_LISTS];
    int64_t completion_tokens;
    bool ended;
};

static int list_of(struct clime_str key) {
    for (int k = 1; k < N_LISTS; k++)
        if (clime_str_is(key, list_names[k])) return k;
    return 0;
}

static void read_meta(struct clime_json *j, struct event *ev) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        int k = list_of(key);
        if (k)
            clime_json_skip(j, &ev->lists[k]);
        else if (clime_str_is(key, "completion_tokens"))
            clime_json_int(j, 0, INT32_MAX, &ev->completion_tokens);
        else {
            if (clime_str_is(key, "finish_reason")) ev->ended = clime_json_peek(j) != CLIME_JSON_NULL;
            clime_json_skip(j, NULL);
        }
    }
}

static bool read_event(struct clime_str payload, struct event *ev) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key;
    *ev = (struct event){.completion_tokens = -1};
    clime_arena_init(&arena, payload.len + 1024);
    clime_json_init(&j, payload.ptr, payload.len, &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, list_names[0]))
            clime_json_skip(&j, &ev->lists[0]);
        else if (clime_str_is(key, "meta_info"))
            read_meta(&j, ev);
        else
            clime_json_skip(&j, NULL);
    }
    bool ok = clime_json_end(&j) && ev->lists[0].len >= 2 && ev->completion_tokens >= 0;
    clime_arena_free(&arena);
    return ok;
}

/* {"error": {"code": N}} */
static int status_of_error(struct clime_str payload) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key;
    int64_t status = 500;
    clime_arena_init(&arena, payload.len + 1024);
    clime_json_init(&j, payload.ptr, payload.len, &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (!clime_str_is(key, "error") || clime_json_peek(&j) != CLIME_JSON_OBJECT) {
            clime_json_skip(&j, NULL);
            continue;
        }
        for (clime_json_object(&j); clime_json_key(&j, &key);)
            if (!clime_str_is(key, "code") || !clime_json_int(&j, 100, 599, &status)) clime_json_skip(&j, NULL);
    }
    clime_arena_free(&arena);
    return (int)status;
}

/* ---- keeping events ---- */

static struct clime_replay_output *output_at(struct clime_replay *p, int index) {
    if (index >= p->n_outs) {
        p->outs = xrealloc(p->outs, (size_t)(index + 1) * sizeof *p->outs);
        for (; p->n_outs <= index; p->n_outs++) {
            struct clime_replay_output *o = &p->outs[p->n_outs];
            *o = (struct clime_replay_output){0};
            clime_buf_init(&o->last, LARGEST);
            for (int k = 0; k < N_LISTS; k++) clime_buf_init(&o->lists[k], LARGEST);
        }
    }
    return &p->outs[index];
}

/* Servers write the index first when there are several outputs. */
static int index_of(struct clime_str payload) {
    static const char name[] = "{\"index\":";
    int index = 0;
    if (!clime_str_starts(payload, name)) return 0;
    for (size_t i = sizeof name - 1; i < payload.len && payload.ptr[i] >= '0' && payload.ptr[i] <= '9'; i++)
        index = index < MOST_OUTPUTS ? index * 10 + (payload.ptr[i] - '0') : MOST_OUTPUTS;
    return index;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Reads what is between a list's brackets into *list; null or a missing list gives an empty one. False for anything
 * else. */
static bool open_list(struct clime_str *list) {
    if (!list->len || clime_str_is(*list, "null")) list->len = 0;
    if (!list->len) return true;
    if (list->ptr[0] != '[') return false;
    list->ptr++;
    list->len -= 2;
    while (list->len && is_space(list->ptr[0])) list->ptr++, list->len--;
    while (list->len && is_space(list->ptr[list->len - 1])) list->len--;
    return true;
}

static bool grow_lists(struct clime_replay_output *o, const struct event *ev) {
    int64_t n = 0;
    for (int k = 0; k < N_LISTS; k++) {
        struct clime_str list = ev->lists[k];
        if (!open_list(&list)) return false;
        if (!list.len) continue;
        if (o->lists[k].len) clime_buf_addc(&o->lists[k], ',');
        clime_buf_add(&o->lists[k], list.ptr, list.len);
        if (o->lists[k].full) return false;
        for (size_t i = 0; k == 0 && i < list.len; i++) n += list.ptr[i] == ',';
        if (k == 0) o->n_tokens += n + 1;
    }
    o->ended = ev->ended;
    return o->n_tokens == ev->completion_tokens; /* else the list began before the events seen here */
}

static int64_t size_of(const struct clime_replay_output *o) {
    size_t n = o->last.size;
    for (int k = 0; k < N_LISTS; k++) n += o->lists[k].size;
    return (int64_t)n;
}

static bool keep(struct clime_replay *p, struct clime_replay_output *o, struct clime_str payload) {
    struct event ev;
    int64_t before = size_of(o);
    clime_buf_clear(&o->last);
    clime_buf_add(&o->last, payload.ptr, payload.len);
    bool ok = !o->last.full;
    if (p->kind == CLIME_REPLAY_INCREMENTAL) ok = ok && read_event(payload, &ev) && grow_lists(o, &ev);
    int64_t more = size_of(o) - before;
    p->bytes += more;
    return atomic_fetch_add(&p->memory->used, more) + more <= p->memory->max && ok;
}

enum clime_replay_verdict clime_replay_event(struct clime_replay *p, struct clime_str event, int *status) {
    static const char data[] = "data: ";
    if (!clime_replay_can_go_on(p) || !clime_str_starts(event, data)) return CLIME_REPLAY_PASS;
    struct clime_str payload = {event.ptr + sizeof data - 1, event.len - (sizeof data - 1)};
    while (payload.len && (payload.ptr[payload.len - 1] == '\n' || payload.ptr[payload.len - 1] == '\r')) payload.len--;
    if (clime_str_starts(payload, "{\"error\"")) {
        *status = status_of_error(payload);
        return *status >= 500 ? CLIME_REPLAY_ERROR : CLIME_REPLAY_PASS;
    }
    p->done = p->done || clime_str_is(payload, "[DONE]");
    if (!payload.len || payload.ptr[0] != '{') return CLIME_REPLAY_PASS;
    int index = index_of(payload);
    struct clime_replay_output *o = index < MOST_OUTPUTS ? output_at(p, index) : NULL;
    if (o && o->passed) return CLIME_REPLAY_DROP;
    if (!o || !keep(p, o, payload)) clime_replay_lose(p);
    return CLIME_REPLAY_PASS;
}

/* ---- resuming ---- */

bool clime_replay_begin(struct clime_replay *p, const char *kind) {
    int is = !strcmp(kind, "cumulative")    ? CLIME_REPLAY_CUMULATIVE
             : !strcmp(kind, "incremental") ? CLIME_REPLAY_INCREMENTAL
                                            : CLIME_REPLAY_NONE;
    if (p->n_outs) return (int)p->kind == is;
    p->kind = is;
    return true;
}

/* Writes an incremental output as a complete reply: the last event's meta_info with whole lists. */
static void write_incremental(const struct clime_replay_output *o, struct clime_jw *w) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key, raw;
    clime_arena_init(&arena, o->last.len + 1024);
    clime_json_init(&j, o->last.data, o->last.len, &arena, &e);
    clime_jw_object(w);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (!clime_str_is(key, "meta_info")) {
            clime_json_skip(&j, NULL);
            continue;
        }
        clime_jw_key(w, "meta_info");
        clime_jw_object(w);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (!clime_json_skip(&j, &raw) || list_of(key)) continue;
            clime_jw_key_str(w, key);
            clime_jw_raw(w, raw);
        }
        for (int k = 1; k < N_LISTS; k++) {
            clime_jw_key(w, list_names[k]);
            clime_jw_array(w);
            if (o->lists[k].len) clime_jw_raw(w, clime_buf_str(&o->lists[k]));
            clime_jw_close(w);
        }
        clime_jw_close(w);
    }
    clime_jw_key(w, list_names[0]);
    clime_jw_array(w);
    if (o->lists[0].len) clime_jw_raw(w, clime_buf_str(&o->lists[0]));
    clime_jw_close(w);
    clime_jw_close(w);
    clime_arena_free(&arena);
}

/* False when an event is not in the servers' format. */
static bool find_ended(struct clime_replay *p) {
    struct event ev;
    for (int i = 0; i < p->n_outs; i++) {
        struct clime_replay_output *o = &p->outs[i];
        if (o->last.len && p->kind == CLIME_REPLAY_CUMULATIVE) {
            if (!read_event(clime_buf_str(&o->last), &ev)) return false;
            o->ended = ev.ended;
        }
        o->passed = o->ended;
    }
    return true;
}

bool clime_replay_request(struct clime_replay *p, struct clime_str body, struct clime_buf *out) {
    struct clime_jw w;
    if (!clime_replay_can_go_on(p) || !find_ended(p)) return false;
    while (body.len && body.ptr[body.len - 1] != '}') body.len--; /* known to be an object */
    if (body.len < 2) return false;
    clime_buf_init(out, LARGEST_REQUEST);
    clime_buf_add(out, body.ptr, body.len - 1);
    clime_buf_printf(out, ",\"incremental_streaming_output\":%s,\"resume\":",
                     p->kind == CLIME_REPLAY_INCREMENTAL ? "true" : "false");
    clime_jw_init(&w, out);
    clime_jw_array(&w);
    for (int i = 0; i < p->n_outs; i++) {
        const struct clime_replay_output *o = &p->outs[i];
        if (!o->last.len)
            clime_jw_null(&w);
        else if (p->kind == CLIME_REPLAY_CUMULATIVE)
            clime_jw_raw(&w, clime_buf_str(&o->last));
        else
            write_incremental(o, &w);
    }
    clime_jw_close(&w);
    clime_buf_addc(out, '}');
    return !out->full;
}
