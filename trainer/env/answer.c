/* The policy's answer as text, and what is in it: reasoning, content, calls of tools (text/output). Called by the
 * thread that owns the task, and by the writers of replies; owns nothing.
 *
 * A session's chat is read as the servers read theirs, by what the chat template shows, so that an agent meets here
 * what it meets where the policy is served. */
#include <stdlib.h>
#include <string.h>

#include "text/chat/chat_answer.h"
#include "text/template/chat.h"
#include "trainer/env/environments_int.h"

#define PROMPT_END 16 /* tokens: enough for a marker and the white space behind it */

void clime_env_choose_format(struct clime_environments *v) {
    struct clime_str source = clime_str_of(clime_tokenizer_chat_template(v->o.tok, NULL));
    v->takes = clime_chat_takes(v->renderer.template);
    v->format.reasoning = clime_output_parser_of_template(source);
    v->format.calls = clime_call_format_of_template(source);
    clime_call_format_markers(v->format.calls, v->o.tok, &v->markers);
}

/* begins[i]: where in the text token i begins. */
static void decode(const struct clime_environments *v, const int32_t *ids, int n, bool skip_special, bool markers,
                   size_t *begins, struct clime_buf *out) {
    struct clime_detok d;
    clime_detok_init(&d, v->o.tok, skip_special);
    d.kept = v->markers.data;
    d.n_kept = markers ? (int)v->markers.len : 0;
    for (int i = 0; i < n; i++) {
        begins[i] = out->len;
        clime_detok_feed(&d, ids[i], out);
    }
    clime_detok_finish(&d, out);
}

static void parse(const struct clime_environments *v, const struct clime_sample *s, struct clime_env_call *c) {
    struct clime_output_format how = v->format;
    struct clime_buf end;
    int n = s->n_prompt < PROMPT_END ? s->n_prompt : PROMPT_END;
    how.calls = c->ask->known ? how.calls : NULL;
    how.tools = c->ask->known;
    how.one_call = c->ask->one_call;
    clime_buf_init(&end, CLIME_RENDER_MAX);
    clime_tokenizer_decode(v->o.tok, s->ids + s->n_prompt - n, (size_t)n, false, &end);
    clime_parse_begin(&c->parse, &how, clime_buf_str(&end));
    clime_parse_feed(&c->parse, clime_buf_str(&c->text), true);
    clime_buf_free(&end);
}

/* A stop string of the client's is no part of the text that it gets, though the policy has said it and its tokens stay.
 * The one that ended the answer was completed by the last token, whose text begins at `last`. */
static void cut_stop(size_t last, struct clime_env_call *c) {
    const struct clime_env_ask *a = c->ask;
    size_t cut = c->text.len;
    for (int i = 0; i < a->n_stop; i++) {
        size_t n = strlen(a->stop[i]), from = last >= n ? last - n + 1 : 0;
        if (from + n > c->text.len) continue;
        const char *hit = memmem(c->text.data + from, c->text.len - from, a->stop[i], n);
        if (!hit || (size_t)(hit - c->text.data) >= cut) continue;
        cut = (size_t)(hit - c->text.data);
        c->matched = a->stop[i];
    }
    c->text.len = cut;
}

void clime_env_read_answer(const struct clime_environments *v, const struct clime_sample *s, bool skip_special,
                           struct clime_env_call *c) {
    const int32_t *ids = s->ids + s->n_prompt;
    int n = s->n_response;
    bool ended = n > 0 && clime_renderer_ends_turn(&v->renderer, ids[n - 1]);
    if (ended) n--;
    size_t *begins = xmalloc((size_t)n * sizeof *begins + 1), thought = 0;
    decode(v, ids, n, skip_special, c->ask->chat && c->ask->known, begins, &c->text);
    if (c->ask->chat && !ended && n > 0 && s->status == CLIME_SAMPLE_COMPLETED) cut_stop(begins[n - 1], c);
    if (c->ask->chat) parse(v, s, c);
    for (int i = 0; i < c->parse.segments.n; i++)
        if (c->parse.segments.at[i].kind == CLIME_SEGMENT_REASONING) thought = c->parse.segments.at[i].end;
    while (c->n_reasoning < n && begins[c->n_reasoning] < thought) c->n_reasoning++;
    free(begins);
}

struct clime_answer clime_env_answer(const struct clime_env_call *c) {
    const struct clime_sample *s = c->answer;
    return (struct clime_answer){.id = clime_str_of(c->rid),
                                 .model = CLIME_ENV_MODEL,
                                 .created = c->created,
                                 .parse = &c->parse,
                                 .text = clime_buf_str(&c->text),
                                 .end = s->status == CLIME_SAMPLE_COMPLETED ? CLIME_ANSWER_STOP : CLIME_ANSWER_LENGTH,
                                 .matched = clime_str_of(c->matched ? c->matched : ""),
                                 .n_prompt = s->n_prompt,
                                 .n_cached = s->cached_tokens,
                                 .n_out = s->n_response,
                                 .n_reasoning = c->n_reasoning,
                                 .weight_version = c->version_name};
}
