/* Replies of /generate. clime_generate_write runs on the HTTP worker once the job is closed; the framer's functions run
 * on the job's emitter. Owns the per-output fragments.
 *
 * A cumulative stream repeats ids and log-probabilities in every event (SGLang's clients rely on it). Formatting a
 * float costs 20 times a copy, so the lists are cached as text and appended to. Invariant: every reply, also of an
 * aborted request, has every field; lists may be empty.
 */
#include "server/api/generate_reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base64.h"
#include "common/clock.h"
#include "common/http/sse.h"

/* Lists with one item per token. */
enum { IDS, LOGP, MASKS, MASK_LOGP, N_LISTS };

struct fragment {
    struct clime_buf lists[N_LISTS];
    size_t n; /* tokens in the lists */
};

struct clime_generate_reply {
    struct clime_generate_options opts;
    struct fragment *frags; /* [n_outs] */
    int n_frags;
    struct clime_buf event;
};

struct clime_generate_reply *clime_generate_reply_new(const struct clime_generate_options *o) {
    struct clime_generate_reply *r = xcalloc(1, sizeof *r);
    r->opts = *o;
    clime_buf_init(&r->event, CLIME_MAX_REPLY);
    return r;
}

void clime_generate_reply_free(struct clime_generate_reply *r) {
    for (int i = 0; i < r->n_frags; i++) {
        for (int k = 0; k < N_LISTS; k++) clime_buf_free(&r->frags[i].lists[k]);
    }
    clime_buf_free(&r->event);
    free(r->frags);
    free(r);
}

struct cursor { /* of an incremental stream: amounts sent */
    size_t ids, text;
};

static struct fragment *fragment_of(struct clime_generate_reply *r, const struct clime_output *o) {
    if (!r->frags) {
        r->n_frags = o->job->n_outs;
        r->frags = xcalloc((size_t)r->n_frags, sizeof *r->frags);
        for (int i = 0; i < r->n_frags; i++) {
            for (int k = 0; k < N_LISTS; k++) clime_buf_init(&r->frags[i].lists[k], CLIME_MAX_REPLY);
        }
    }
    return &r->frags[o->index];
}

/* ---- log-probabilities ------------------------------------------------------------------------------------- */

static void write_tuple(struct clime_jw *w, const struct clime_output *o, bool has_logp, float logp, int32_t id) {
    clime_jw_array(w);
    if (has_logp)
        clime_jw_float(w, logp);
    else
        clime_jw_null(w);
    clime_jw_int(w, id);
    if (o->logp->text)
        clime_jw_str(w, clime_tokenizer_bytes(o->job->tokenizer, id));
    else
        clime_jw_null(w);
    clime_jw_close(w);
}

/* One position's list of tuples: the largest, or the chosen ids. */
static void write_extra(struct clime_jw *w, const struct clime_output *o, const struct clime_lp_extra *x, bool top) {
    int first = top ? 0 : x->n_top, end = top ? x->n_top : x->n_top + x->n_ids;
    clime_jw_array(w);
    for (int i = first; i < end; i++) write_tuple(w, o, true, x->at[i].logp, x->at[i].id);
    clime_jw_close(w);
}

static void write_prompt_logp(struct clime_jw *w, const struct clime_output *o) {
    clime_jw_array(w);
    bool all = o->logp->start >= 0 && o->logp->start < o->n_prompt;
    if (all && o->logp->start == 0) write_tuple(w, o, false, 0, o->ids[0]); /* the first token has no score */
    for (int i = 0; i < o->n_prompt_logp; i++) write_tuple(w, o, true, o->prompt_logp[i], o->ids[o->prompt_first + i]);
    clime_jw_close(w);
}

static void write_prompt_extra(struct clime_jw *w, const struct clime_output *o, bool top) {
    clime_jw_array(w);
    if (o->prompt_extra && (top ? o->logp->top > 0 : o->logp->n_ids > 0)) {
        if (o->logp->start == 0) clime_jw_null(w);
        for (int i = 0; i < o->n_prompt_logp; i++) write_extra(w, o, o->prompt_extra[i], top);
    }
    clime_jw_close(w);
}

static void write_out_extra(struct clime_jw *w, const struct clime_output *o, size_t from, bool top) {
    clime_jw_array(w);
    if (o->extra && (top ? o->logp->top > 0 : o->logp->n_ids > 0))
        for (size_t i = from; i < o->out.len; i++) write_extra(w, o, o->extra[i], top);
    clime_jw_close(w);
}

static void write_ids(struct clime_jw *w, const int32_t *ids, size_t n) {
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) clime_jw_int(w, ids[i]);
    clime_jw_close(w);
}

/* One token's item. */
static void write_item(struct clime_jw *w, const struct clime_output *o, int list, size_t i) {
    switch (list) {
    case IDS:
        clime_jw_int(w, o->out.data[i]);
        break;
    case LOGP:
        write_tuple(w, o, true, o->out_logp[i], o->out.data[i]);
        break;
    case MASKS:
        write_ids(w, o->masks[i]->ids, (size_t)o->masks[i]->n);
        break;
    default:
        clime_jw_float(w, o->masks[i]->logp);
    }
}

static bool has_list(const struct clime_output *o, int list) {
    return list == IDS || (list == LOGP ? o->logp->wanted : o->logp->mask);
}

/* The list from a token on; frag: its cached text. */
static void write_list(struct clime_jw *w, const struct clime_output *o, int list, size_t from,
                       const struct fragment *frag) {
    if (frag) {
        clime_jw_raw(w, clime_buf_str(&frag->lists[list]));
        return;
    }
    clime_jw_array(w);
    for (size_t i = from; i < o->out.len; i++) write_item(w, o, list, i);
    clime_jw_close(w);
}

/* ---- meta_info --------------------------------------------------------------------------------------------- */

static void write_finish(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_finish *f = &o->finish;
    if (f->type == CLIME_FINISH_NONE) {
        clime_jw_null(w);
        return;
    }
    clime_jw_object(w);
    clime_jw_key(w, "type");
    if (f->type == CLIME_FINISH_LENGTH) {
        clime_jw_strz(w, "length");
        clime_jw_put_int(w, "length", o->max_new);
    } else if (f->type == CLIME_FINISH_STOP) {
        clime_jw_strz(w, "stop");
        clime_jw_key(w, "matched");
        if (f->matched_id >= 0)
            clime_jw_int(w, f->matched_id);
        else
            clime_jw_str(w, f->matched_str);
    } else {
        clime_jw_strz(w, "abort");
        clime_jw_put_strz(w, "message", f->message);
        clime_jw_key(w, "status_code");
        if (f->status)
            clime_jw_int(w, f->status);
        else
            clime_jw_null(w);
        clime_jw_key(w, "err_type");
        clime_jw_null(w);
    }
    clime_jw_close(w);
}

/* [[label, count], ...], consecutive runs; kept_kv: [[first, count], ...] of tokens whose context held older KV. */
static void write_versions(struct clime_jw *w, const struct clime_output *o) {
    clime_jw_key(w, "token_versions");
    clime_jw_array(w);
    for (int i = 0; i < o->n_runs;) {
        const struct clime_weight_label *label = o->runs[i].label;
        int count = 0; /* a label may have two structs: resumed tokens have their own */
        for (; i < o->n_runs && strcmp(o->runs[i].label->name, label->name) == 0; i++) count += o->runs[i].count;
        clime_jw_array(w);
        clime_jw_strz(w, label->name);
        clime_jw_int(w, count);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "kept_kv");
    clime_jw_array(w);
    for (int i = 0, at = 0; i < o->n_runs; at += o->runs[i++].count) {
        if (!o->runs[i].kept_kv) continue;
        clime_jw_array(w);
        clime_jw_int(w, at);
        clime_jw_int(w, o->runs[i].count);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

/* SGLang fields with a single value here: one cache tier, one replica. */
static void write_single_valued(struct clime_jw *w, const struct clime_output *o) {
    clime_jw_key(w, "cached_tokens_details");
    clime_jw_object(w);
    clime_jw_put_int(w, "device", o->cached_tokens);
    clime_jw_put_int(w, "host", 0);
    clime_jw_put_int(w, "storage", 0);
    clime_jw_key(w, "storage_backend");
    clime_jw_null(w);
    clime_jw_close(w);
    clime_jw_put_int(w, "reasoning_tokens", clime_output_reasoning_tokens(o));
    clime_jw_put_int(w, "dp_rank", 0);
}

/* Readers with double numbers round above 53 bits. */
void clime_seed_write(struct clime_jw *w, const struct clime_output *o) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, o->seed);
    clime_jw_put_uint(w, "seed", o->seed);
    clime_jw_put_strz(w, "seed_text", text);
}

/* SGLang's drafting statistics. */
static void write_drafts(struct clime_jw *w, const struct clime_output *o) {
    const struct clime_draft_counts *d = &o->drafts;
    clime_jw_put_int(w, "spec_verify_ct", d->n_steps);
    clime_jw_put_int(w, "spec_num_proposed_drafts", d->n_guesses);
    clime_jw_put_int(w, "spec_num_correct_drafts", d->n_right);
    clime_jw_put_double(w, "spec_accept_rate", d->n_guesses ? (double)d->n_right / d->n_guesses : 0);
    clime_jw_put_double(w, "spec_accept_length", d->n_steps ? (double)(d->n_steps + d->n_right) / d->n_steps : 0);
}

/* Routing hash of the row that drew each token; 0 = unknown. */
static void write_routing(struct clime_jw *w, const struct clime_output *o, size_t from) {
    clime_jw_key(w, "routing_hashes");
    clime_jw_array(w);
    for (size_t i = from; i < o->out.len; i++) clime_jw_int(w, o->out_routing[i]);
    clime_jw_close(w);
}

/* SGLang's: int32 [positions, layers, chosen], for all but the last token, in the final reply. Omitted if some are
 * unknown (aborted before its rows ran): readers shape the array by their token count. */
static void write_choices(struct clime_jw *w, const struct clime_output *o) {
    int64_t n = (int64_t)o->n_prompt + (int64_t)o->out.len - 1 - o->job->choices_from;
    struct clime_buf text;
    if (n > o->n_choices) return;
    clime_buf_init(&text, CLIME_MAX_REPLY);
    if (n > 0) clime_base64_encode(o->choices, (size_t)(n * o->job->choices_width) * sizeof *o->choices, &text);
    clime_jw_put_str(w, "routed_experts", clime_buf_str(&text));
    clime_jw_put_int(w, "routed_experts_start_len", o->job->choices_from);
    clime_buf_free(&text);
}

static void write_meta(struct clime_jw *w, const struct clime_output *o, const struct clime_generate_options *opts,
                       size_t from, const struct fragment *frag) {
    int64_t now = clime_now_us(), end = o->finished_us ? o->finished_us : now;
    clime_jw_object(w);
    clime_jw_put_str(w, "id", o->rid);
    clime_jw_key(w, "finish_reason");
    write_finish(w, o);
    clime_jw_put_int(w, "prompt_tokens", o->n_prompt);
    clime_jw_put_int(w, "completion_tokens", (int64_t)o->out.len);
    clime_jw_put_int(w, "cached_tokens", o->cached_tokens);
    write_single_valued(w, o);
    clime_jw_put_strz(w, "weight_version", o->version ? o->version->name : "");
    if (o->job->device) clime_jw_put_strz(w, "device_name", o->job->device);
    clime_jw_put_int(w, "num_retractions", o->n_retractions);
    if (o->n_resumed) clime_jw_put_int(w, "resumed_tokens", o->n_resumed);
    if (o->job->drafting) write_drafts(w, o);
    clime_jw_put_double(w, "e2e_latency", (double)(end - o->job->received_us) / 1e6);
    clime_jw_put_double(w, "response_sent_to_client_ts", (double)clime_wall_us() / 1e6);
    clime_seed_write(w, o);
    write_versions(w, o);
    if (opts && opts->return_routing) write_routing(w, o, from);
    if (o->job->choices_wanted && o->closed) write_choices(w, o);
    if (o->logp->wanted) {
        clime_jw_key(w, "input_token_logprobs");
        write_prompt_logp(w, o);
        clime_jw_key(w, "output_token_logprobs");
        write_list(w, o, LOGP, from, frag);
        clime_jw_put_int(w, "output_token_logprobs_length", (int64_t)(o->out.len - from));
        clime_jw_key(w, "input_top_logprobs");
        write_prompt_extra(w, o, true);
        clime_jw_key(w, "output_top_logprobs");
        write_out_extra(w, o, from, true);
        clime_jw_key(w, "input_token_ids_logprobs");
        write_prompt_extra(w, o, false);
        clime_jw_key(w, "output_token_ids_logprobs");
        write_out_extra(w, o, from, false);
    }
    if (o->logp->mask) {
        clime_jw_key(w, "output_token_sampling_mask");
        write_list(w, o, MASKS, from, frag);
        clime_jw_key(w, "output_token_sampling_logprobs");
        write_list(w, o, MASK_LOGP, from, frag);
        clime_jw_put_int(w, "output_token_sampling_mask_length", (int64_t)(o->out.len - from));
    }
    clime_jw_close(w);
}

void clime_meta_info_write(struct clime_jw *w, const struct clime_output *o) {
    write_meta(w, o, NULL, 0, NULL);
}

/* ---- replies ----------------------------------------------------------------------------------------------- */

/* from > 0: only newer tokens (incremental streams). frag: the cumulative lists as text. */
static void write_output(struct clime_generate_reply *r, struct clime_jw *w, const struct clime_output *o, size_t from,
                         size_t text_from, const struct fragment *frag) {
    struct clime_str safe = clime_stop_text_safe(&o->text), text = {safe.ptr + text_from, safe.len - text_from};
    clime_jw_object(w);
    if (o->job->is_list && o->job->stream) clime_jw_put_int(w, "index", o->index);
    clime_jw_put_str(w, "text", text);
    clime_jw_key(w, "output_ids");
    write_list(w, o, IDS, from, frag);
    if (r->opts.return_prompt_ids) {
        clime_jw_key(w, "prompt_token_ids");
        write_ids(w, o->ids, (size_t)o->n_prompt);
    }
    clime_jw_key(w, "meta_info");
    write_meta(w, o, &r->opts, from, frag);
    clime_jw_close(w);
}

void clime_generate_write(struct clime_generate_reply *r, struct clime_job *j, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    if (j->is_list) clime_jw_array(&w);
    for (int i = 0; i < j->n_outs; i++) write_output(r, &w, &j->outs[i], 0, 0, NULL);
    if (j->is_list) clime_jw_close(&w);
}

/* Cached text ends with a bracket, which the next items overwrite. */
static void reopen(struct clime_buf *list) {
    if (list->len > 0)
        list->len--;
    else
        clime_buf_addc(list, '[');
}

static void grow_fragment(struct fragment *f, const struct clime_output *o) {
    struct clime_jw w;
    for (int k = 0; k < N_LISTS; k++) {
        if (!has_list(o, k)) continue;
        reopen(&f->lists[k]);
        for (size_t i = f->n; i < o->out.len; i++) {
            if (i > 0) clime_buf_addc(&f->lists[k], ',');
            clime_jw_init(&w, &f->lists[k]);
            write_item(&w, o, k, i);
        }
        clime_buf_addc(&f->lists[k], ']');
    }
    f->n = o->out.len;
}

static void write_stream_error(struct clime_generate_reply *r, const struct clime_output *o, struct clime_buf *sse) {
    struct clime_jw w;
    clime_jw_init(&w, &r->event);
    clime_jw_object(&w);
    clime_jw_key(&w, "error");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "message", o->finish.message);
    clime_jw_put_strz(&w, "type", "server_error");
    clime_jw_put_int(&w, "code", o->finish.status);
    clime_jw_put_bool(&w, "retryable", false);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_sse_frame(sse, clime_buf_str(&r->event));
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_generate_reply *r = j->endpoint;
    struct clime_jw w;
    clime_buf_clear(&r->event);
    if (o->finish.type == CLIME_FINISH_ABORT && o->finish.status >= 400) {
        write_stream_error(r, o, sse);
        return;
    }
    struct cursor from = {0, 0}, *sent = o->cursor;
    struct fragment *frag = NULL;
    if (j->incremental) {
        if (sent->ids < (size_t)o->n_resumed) *sent = (struct cursor){(size_t)o->n_resumed, o->resumed_text};
        from = *sent;
        *sent = (struct cursor){o->out.len, o->text.n_safe};
    } else {
        frag = fragment_of(r, o);
        grow_fragment(frag, o);
    }
    clime_jw_init(&w, &r->event);
    write_output(r, &w, o, from.ids, from.text, frag);
    clime_reply_event(sse, &r->event);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    (void)j;
    clime_sse_frame(sse, clime_str_of("[DONE]"));
}

const struct clime_framer clime_generate_framer = {
    .cursor_bytes = sizeof(struct cursor), .news = stream_news, .end = stream_end, .resumable = true};
