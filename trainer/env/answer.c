/* Answer parser: the policy's text, and its reasoning, content and tool calls (text/output). Called by the task's owner
 * thread and by the writers of replies; owns nothing.
 *
 * A session's chat is parsed as by the servers, in the format that the chat template shows, so an agent sees the same
 * here as where the policy is served. */
#include <stdlib.h>
#include <string.h>

#include "text/chat/chat_answer.h"
#include "trainer/env/environments_int.h"

#define PROMPT_END 16 /* tokens: covers a marker and the white space after it */

void clime_env_choose_format(struct clime_environments *v) {
    v->format.reasoning = clime_chat_reasoning(&v->template);
    v->format.calls = clime_chat_calls(&v->template);
    clime_call_format_markers(v->format.calls, v->o.tok, &v->markers);
}

static void begin_parse(struct clime_env_reading *r, const int32_t *prompt, int n_prompt) {
    struct clime_output_format how = r->v->format;
    struct clime_buf end;
    int n = n_prompt < PROMPT_END ? n_prompt : PROMPT_END;
    how.calls = r->ask->known ? how.calls : NULL;
    how.tools = r->ask->known;
    how.one_call = r->ask->one_call;
    how.only_known = r->ask->only_known;
    clime_buf_init(&end, CLIME_RENDER_MAX);
    clime_tokenizer_decode(r->v->o.tok, prompt + n_prompt - n, (size_t)n, false, &end);
    clime_parse_begin(&r->parse, &how, clime_buf_str(&end));
    clime_buf_free(&end);
}

void clime_env_reading_begin(struct clime_env_reading *r, const struct clime_environments *v,
                             const struct clime_env_ask *ask, bool skip_special, const int32_t *prompt, int n_prompt) {
    *r = (struct clime_env_reading){.v = v, .ask = ask};
    clime_buf_init(&r->text, CLIME_RENDER_MAX);
    clime_detok_init(&r->detok, v->o.tok, skip_special);
    r->detok.kept = v->markers.data;
    r->detok.n_kept = ask->chat && ask->known ? (int)v->markers.len : 0;
    if (ask->chat) begin_parse(r, prompt, n_prompt);
}

void clime_env_reading_free(struct clime_env_reading *r) {
    if (r->v) clime_detok_free(&r->detok);
    clime_buf_free(&r->text);
    clime_parse_free(&r->parse);
    free(r->begins);
    *r = (struct clime_env_reading){0};
}

static void add_token(struct clime_env_reading *r, int32_t id) {
    if (r->n == r->size) {
        r->size = r->size ? 2 * r->size : 64;
        r->begins = xrealloc(r->begins, (size_t)r->size * sizeof *r->begins);
    }
    r->begins[r->n++] = r->text.len;
    clime_detok_feed(&r->detok, id, &r->text);
}

/* Cuts the client's stop string from its text; the tokens stay. The last token, whose text begins at `last`, completed
 * the one that ended the answer. */
static void cut_stop(struct clime_env_reading *r, size_t last) {
    const struct clime_env_ask *a = r->ask;
    size_t cut = r->text.len;
    for (int i = 0; i < a->n_stop; i++) {
        size_t n = strlen(a->stop[i]), from = last >= n ? last - n + 1 : 0;
        if (from + n > r->text.len) continue;
        const char *hit = memmem(r->text.data + from, r->text.len - from, a->stop[i], n);
        if (!hit || (size_t)(hit - r->text.data) >= cut) continue;
        cut = (size_t)(hit - r->text.data);
        r->matched = a->stop[i];
    }
    r->text.len = cut;
}

/* Length of the text without an end that may begin one of the client's stop strings. */
static size_t safe_length(const struct clime_env_reading *r) {
    size_t hold = 0;
    for (int i = 0; i < r->ask->n_stop; i++) {
        size_t n = strlen(r->ask->stop[i]) - 1;
        if (n > r->text.len) n = r->text.len;
        while (n > hold && memcmp(r->text.data + r->text.len - n, r->ask->stop[i], n) != 0) n--;
        if (n > hold) hold = n;
    }
    return r->text.len - hold;
}

void clime_env_reading_feed(struct clime_env_reading *r, const int32_t *ids, int n, bool last, bool completed) {
    bool chat = r->ask->chat, ends = n > 0 && clime_tokenizer_ends_turn(r->v->o.tok, ids[n - 1]);
    size_t thought = 0;
    /* the newest token may end the turn or complete a stop string: wait for the next */
    int until = ends || (!last && r->ask->n_stop && n > 0) ? n - 1 : n;
    while (r->n < until) add_token(r, ids[r->n]);
    if (last) clime_detok_finish(&r->detok, &r->text);
    if (last && chat && !ends && n > 0 && completed) cut_stop(r, r->begins[n - 1]);
    r->n_safe = last ? r->text.len : safe_length(r);
    if (!chat) return;
    clime_parse_feed(&r->parse, (struct clime_str){r->text.data ? r->text.data : "", r->n_safe}, last);
    for (int i = 0; i < r->parse.segments.n; i++)
        if (r->parse.segments.at[i].kind == CLIME_SEGMENT_REASONING) thought = r->parse.segments.at[i].end;
    while (r->n_reasoning < r->n && r->begins[r->n_reasoning] < thought) r->n_reasoning++;
}

void clime_env_reading_break(struct clime_env_reading *r) {
    if (r->v && r->ask->chat)
        clime_parse_feed(&r->parse, (struct clime_str){r->text.data ? r->text.data : "", r->n_safe}, true);
}

struct clime_answer clime_env_answer(const struct clime_env_call *c, const struct clime_env_reading *said,
                                     const struct clime_sample *s) {
    return (struct clime_answer){.id = clime_str_of(c->rid),
                                 .model = CLIME_ENV_MODEL,
                                 .created = c->created,
                                 .parse = &said->parse,
                                 .text = {said->text.data ? said->text.data : "", said->n_safe},
                                 .end = !s                                    ? CLIME_ANSWER_OPEN
                                        : s->status == CLIME_SAMPLE_COMPLETED ? CLIME_ANSWER_STOP
                                                                              : CLIME_ANSWER_LENGTH,
                                 .matched = clime_str_of(said->matched ? said->matched : ""),
                                 .n_prompt = c->n_prompt,
                                 .n_cached = s ? s->cached_tokens : 0,
                                 .n_out = s ? s->n_response : 0,
                                 .n_reasoning = said->n_reasoning,
                                 .weight_version = c->version_name,
                                 .custom = c->ask->custom}; /* said may not have begun */
}
