/* Parses "resume" (see resume.h). Called by the HTTP worker that owns the job, before submission: until then it owns
 * both parts of an output. Tokens go through the emitter's path (clime_output_token), which restores text, stop strings
 * and segments.
 *
 * Invariant: the reply is untrusted: ids must be in the vocabulary, lists must have the right length, and no token may
 * follow one that ends the output.
 */
#include "server/api/resume.h"

#include <float.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/json/members.h"
#include "server/api/id_list.h"

struct reply {
    struct clime_ids ids;
    struct clime_str id, logp, top, chosen, masks, mask_logp, versions, kept, routing; /* lists as raw JSON */
    uint64_t seed;
    bool has_seed;
};

static bool read_seed(struct clime_json *j, void *object) {
    struct reply *r = object;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    r->has_seed = clime_json_uint(j, &r->seed);
    return r->has_seed;
}

static bool read_ids(struct clime_json *j, void *object) {
    return clime_id_list_read(j, &((struct reply *)object)->ids);
}

#define AT(field) offsetof(struct reply, field)

static const struct clime_member meta_rows[] = {
    {"id", CLIME_MEMBER_STRING, AT(id)},
    {"seed", CLIME_MEMBER_CALL, .read = read_seed},
    {"output_token_logprobs", CLIME_MEMBER_RAW, AT(logp)},
    {"output_top_logprobs", CLIME_MEMBER_RAW, AT(top)},
    {"output_token_ids_logprobs", CLIME_MEMBER_RAW, AT(chosen)},
    {"output_token_sampling_mask", CLIME_MEMBER_RAW, AT(masks)},
    {"output_token_sampling_logprobs", CLIME_MEMBER_RAW, AT(mask_logp)},
    {"token_versions", CLIME_MEMBER_RAW, AT(versions)},
    {"kept_kv", CLIME_MEMBER_RAW, AT(kept)},
    {"routing_hashes", CLIME_MEMBER_RAW, AT(routing)},
};
static const struct clime_members meta_members = {meta_rows, CLIME_COUNT(meta_rows)};

/* Reads the known members; replies have more. */
static bool read_members(struct clime_json *j, const struct clime_members *m, struct reply *r) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(m, j, key, r)) clime_json_skip(j, NULL);
    return !j->failed;
}

static bool read_meta(struct clime_json *j, void *object) {
    return read_members(j, &meta_members, object);
}

static bool read_reply(struct clime_json *j, struct reply *r) {
    static const struct clime_member rows[] = {{"output_ids", CLIME_MEMBER_CALL, .read = read_ids},
                                               {"meta_info", CLIME_MEMBER_CALL, .read = read_meta}};
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    return read_members(j, &members, r);
}

/* ---- parallel lists -------------------------------------------------------------------------------------- */

/* The lists of a reply as scanners positioned at the next token's item. An empty text is an ended list. */
struct lists {
    struct clime_json logp, top, chosen, masks, mask_logp, versions, kept, routing;
    struct clime_error *e;
    struct clime_weight_label *label; /* label of the next n_of_label tokens */
    int64_t n_of_label;
    int64_t kept_from, kept_n; /* the next run of tokens whose context has older KV */
    bool no_more_kept, no_more_routing;
};

static void open_list(struct clime_json *j, struct clime_str text, struct clime_arena *a, struct clime_error *e) {
    if (!text.len) text = clime_str_of("[]");
    clime_json_init(j, text.ptr, text.len, a, e);
    clime_json_array(j);
}

/* Error of an item that is too short or too long. */
static bool odd_item(struct clime_json *j, const char *should) {
    return j->failed ? false : clime_json_bad(j, "an item is not [%s]", should);
}

static bool next_pair(struct clime_json *j, int64_t *first, int64_t *second) {
    bool ok = clime_json_array(j) && clime_json_item(j) && clime_json_int(j, 0, INT32_MAX, first) &&
              clime_json_item(j) && clime_json_int(j, 1, INT32_MAX, second) && !clime_json_item(j);
    return (ok && !j->failed) || odd_item(j, "first token, number of tokens");
}

static bool next_label(struct lists *l, struct clime_arena *a) {
    const char *name;
    if (!clime_json_item(&l->versions)) return clime_json_bad(&l->versions, "of too few tokens");
    bool ok = clime_json_array(&l->versions) && clime_json_item(&l->versions) &&
              clime_json_string_z(&l->versions, &name) && clime_json_item(&l->versions) &&
              clime_json_int(&l->versions, 1, INT32_MAX, &l->n_of_label) && !clime_json_item(&l->versions);
    if (!ok || l->versions.failed) return odd_item(&l->versions, "version, number of tokens");
    if (strlen(name) > CLIME_MAX_LABEL)
        return clime_json_bad(&l->versions, "a weight version has at most %d bytes", CLIME_MAX_LABEL);
    l->label = clime_arena_zalloc(a, sizeof *l->label);
    if (l->label) l->label->name = name;
    return l->label != NULL;
}

/* A log-probability in float range: 1e39 is not. */
static bool read_logp(struct clime_json *j, float *out) {
    double number = 0;
    if (!clime_json_double(j, &number)) return false;
    if (!(number >= -FLT_MAX && number <= FLT_MAX)) return clime_json_bad(j, "%g is no log-probability", number);
    *out = (float)number;
    return true;
}

#define TUPLE "log-probability, id, ..."

static bool next_logp(struct clime_json *j, int32_t id, float *out) {
    int64_t of = -1;
    if (!clime_json_item(j)) return clime_json_bad(j, "fewer items than output_ids");
    if (!clime_json_array(j) || !clime_json_item(j) || !read_logp(j, out) || !clime_json_item(j) ||
        !clime_json_int(j, 0, INT32_MAX, &of))
        return odd_item(j, TUPLE);
    if (of != id) return clime_json_bad(j, "it and output_ids are of different tokens");
    while (clime_json_item(j)) clime_json_skip(j, NULL); /* the token's text */
    return !j->failed;
}

/* Appends a position's tuples to x, at most `room`. */
static bool next_extra(struct clime_json *j, int room, int V, struct clime_lp_extra *x, int *n) {
    int at = x->n_top + x->n_ids;
    if (!clime_json_item(j)) return clime_json_bad(j, "fewer items than output_ids");
    for (clime_json_array(j); clime_json_item(j); ++*n) {
        int64_t id = 0;
        if (*n == room) return clime_json_bad(j, "more log-probabilities of a token than the request asks for");
        if (!clime_json_array(j) || !clime_json_item(j) || !read_logp(j, &x->at[at + *n].logp) || !clime_json_item(j) ||
            !clime_json_int(j, 0, V - 1, &id))
            return odd_item(j, TUPLE);
        while (clime_json_item(j)) clime_json_skip(j, NULL);
        x->at[at + *n].id = (int32_t)id;
    }
    return !j->failed;
}

/* Outputs with such lists need one for every token, possibly empty. */
static bool take_extra(struct lists *l, const struct clime_logp_options *lp, int V, struct clime_event *ev) {
    if (lp->top + lp->n_ids == 0) return true;
    struct clime_lp_extra *x = xcalloc(1, sizeof *x + (size_t)(lp->top + lp->n_ids) * sizeof x->at[0]);
    ev->extra = x;
    if (!lp->wanted) return true; /* the reply does not show them */
    return (lp->top == 0 || next_extra(&l->top, lp->top, V, x, &x->n_top)) &&
           (lp->n_ids == 0 || next_extra(&l->chosen, lp->n_ids, V, x, &x->n_ids));
}

/* A token's sampling mask, which must contain the token. */
static bool take_mask(struct lists *l, const struct clime_output *o, int32_t id, int V,
                      struct clime_sampling_mask **out) {
    int room = clime_output_mask_room(o);
    struct clime_json *j = &l->masks;
    float logp = 0;
    bool has_it = false;
    if (room == 0) return true;
    struct clime_ids ids = {0};
    if (!clime_json_item(j)) return clime_json_bad(j, "fewer items than output_ids");
    if (!clime_json_item(&l->mask_logp)) return clime_json_bad(&l->mask_logp, "fewer items than output_ids");
    if (!clime_id_list_read(j, &ids) || !read_logp(&l->mask_logp, &logp)) return false;
    if (ids.len > (size_t)room) return clime_json_bad(j, "a sampling mask has more ids than the request can leave");
    for (size_t i = 0; i < ids.len; i++) {
        if (ids.data[i] < 0 || ids.data[i] >= V) return clime_json_bad(j, "a sampling mask leaves the vocabulary");
        has_it = has_it || ids.data[i] == id;
    }
    if (!has_it) return clime_json_bad(j, "a sampling mask lacks the token that was drawn");
    struct clime_sampling_mask *m = *out = xmalloc(sizeof *m + ids.len * sizeof m->ids[0]);
    *m = (struct clime_sampling_mask){.logp = logp, .n = (int)ids.len};
    memcpy(m->ids, ids.data, ids.len * sizeof m->ids[0]);
    return true;
}

static bool take_kept(struct lists *l, int at, bool *kept) {
    if (l->kept_n > 0 && at >= l->kept_from + l->kept_n) l->kept_n = 0;
    if (l->kept_n == 0 && !l->no_more_kept) {
        l->no_more_kept = !clime_json_item(&l->kept);
        if (!l->no_more_kept && !next_pair(&l->kept, &l->kept_from, &l->kept_n)) return false;
    }
    *kept = l->kept_n > 0 && at >= l->kept_from && at < l->kept_from + l->kept_n;
    return !l->kept.failed;
}

/* Unknown (0) if the reply lacks them. */
static bool take_routing(struct lists *l, struct clime_event *ev) {
    int64_t hash = 0;
    if (!l->no_more_routing) l->no_more_routing = !clime_json_item(&l->routing);
    if (l->no_more_routing) return !l->routing.failed;
    if (!clime_json_int(&l->routing, 0, UINT32_MAX, &hash)) return false;
    ev->routing = (uint32_t)hash;
    return true;
}

/* ---- one output -------------------------------------------------------------------------------------------- */

static bool take_token(const struct clime_server *s, struct clime_output *o, struct lists *l, int at,
                       struct clime_event *ev) {
    struct clime_arena *a = &o->job->arena;
    if (ev->id < 0 || ev->id >= s->model->cfg.V)
        return clime_fail(l->e, CLIME_ERR_INPUT, "id %d is outside the vocabulary", (int)ev->id), false;
    if (l->n_of_label == 0 && !next_label(l, a)) return false;
    l->n_of_label--;
    ev->version = l->label;
    ev->finish = clime_engine_finish(s->engine, o, at + 1, ev->id);
    if (!take_kept(l, at, &ev->kept_kv) || !take_routing(l, ev)) return false;
    if (o->logp->wanted && !next_logp(&l->logp, ev->id, &ev->logp)) return false;
    return take_mask(l, o, ev->id, s->model->cfg.V, &ev->mask) && take_extra(l, o->logp, s->model->cfg.V, ev);
}

/* Prefixes an error with its list's name. */
static void name_list(const struct lists *l) {
    const struct {
        const struct clime_json *list;
        const char *name;
    } all[] = {{&l->logp, "output_token_logprobs"},
               {&l->top, "output_top_logprobs"},
               {&l->chosen, "output_token_ids_logprobs"},
               {&l->masks, "output_token_sampling_mask"},
               {&l->mask_logp, "output_token_sampling_logprobs"},
               {&l->versions, "token_versions"},
               {&l->kept, "kept_kv"},
               {&l->routing, "routing_hashes"}};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) {
        if (!all[i].list->failed) continue;
        clime_error_prefix(l->e, "%s", all[i].name);
        return;
    }
}

static enum clime_err fill(const struct clime_server *s, struct clime_output *o, const struct reply *r,
                           struct clime_error *e) {
    struct clime_arena *a = &o->job->arena;
    struct lists l = {.e = e};
    if (r->id.len > CLIME_MAX_RID)
        return clime_fail(e, CLIME_ERR_INPUT, "meta_info: id: a rid has at most %d bytes", CLIME_MAX_RID);
    if (r->ids.len > (size_t)o->max_new)
        return clime_fail(e, CLIME_ERR_INPUT, "%zu tokens, more than the %d of max_new_tokens", r->ids.len, o->max_new);
    open_list(&l.logp, r->logp, a, e);
    open_list(&l.top, r->top, a, e);
    open_list(&l.chosen, r->chosen, a, e);
    open_list(&l.masks, r->masks, a, e);
    open_list(&l.mask_logp, r->mask_logp, a, e);
    open_list(&l.versions, r->versions, a, e);
    open_list(&l.kept, r->kept, a, e);
    open_list(&l.routing, r->routing, a, e);
    for (size_t i = 0; i < r->ids.len && !e->code; i++) {
        struct clime_event ev = {.out = o, .kind = CLIME_EVENT_TOKEN, .id = r->ids.data[i]};
        if (o->finish.type != CLIME_FINISH_NONE) {
            clime_fail(e, CLIME_ERR_INPUT, "tokens go on after token %zu has ended the output", i);
        } else if (!take_token(s, o, &l, (int)i, &ev)) {
            free(ev.extra);
            free(ev.mask);
            if (!e->code) clime_fail(e, CLIME_ERR_LIMIT, "the request takes too much memory");
        } else {
            clime_output_token(o, &ev);
        }
    }
    if (e->code) name_list(&l);
    if (e->code) return e->code;
    if (r->id.len) o->rid = r->id;
    if (r->has_seed) o->seed = r->seed;
    o->n_resumed = o->n_written = (int)o->out.len;
    o->resumed_text = o->text.n_safe;
    return CLIME_OK;
}

static enum clime_err read_one(const struct clime_server *s, struct clime_output *o, struct clime_json *j,
                               struct clime_error *e) {
    struct reply r = {.ids = {0}};
    if (clime_json_peek(j) == CLIME_JSON_NULL)
        clime_json_null(j);
    else if (read_reply(j, &r))
        fill(s, o, &r, e);
    if (e->code) clime_error_prefix(e, "resume[%d]", o->index);
    return e->code;
}

enum clime_err clime_resume_read(const struct clime_server *s, struct clime_job *job, struct clime_str resume,
                                 struct clime_error *e) {
    struct clime_json j;
    int n = 0;
    clime_json_init(&j, resume.ptr, resume.len, &job->arena, e);
    if (clime_json_peek(&j) != CLIME_JSON_ARRAY) {
        if (job->n_outs > 1)
            return clime_fail(e, CLIME_ERR_INPUT, "resume must be a list with an item for each output");
        if (read_one(s, &job->outs[0], &j, e)) return e->code;
    } else {
        for (clime_json_array(&j); clime_json_item(&j); n++) {
            if (n == job->n_outs) return clime_fail(e, CLIME_ERR_INPUT, "resume has more items than there are outputs");
            if (read_one(s, &job->outs[n], &j, e)) return e->code;
        }
    }
    return clime_json_end(&j) ? CLIME_OK : e->code;
}
