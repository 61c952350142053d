/* Text and stop strings of one output. Called by the emitter; owns the text and the detokeniser.
 *
 * Invariant: text.data[0 .. n_safe) is final; a stream may send it and nothing beyond it.
 * Each search starts (longest stop string - 1) bytes before the new text, so the cost per token is constant.
 */
#include "server/job/stop_text.h"

#include <string.h>

#define CONTEXT_TOKENS 8 /* last tokens of the prompt: enough to include a non-special one before a template's end */

void clime_stop_text_init(struct clime_stop_text *s, const struct clime_tokenizer *t,
                          const struct clime_sampling_params *p, const int32_t *prompt, int n_prompt) {
    *s = (struct clime_stop_text){.params = p};
    clime_detok_init(&s->detok, t, p->skip_special_tokens);
    clime_buf_init(&s->text, CLIME_MAX_TEXT);
    for (int i = n_prompt > CONTEXT_TOKENS ? n_prompt - CONTEXT_TOKENS : 0; i < n_prompt; i++)
        clime_detok_feed(&s->detok, prompt[i], &s->text);
    clime_detok_begin_reply(&s->detok);
    clime_buf_clear(&s->text);
    for (int i = 0; i < p->n_stop_regex; i++) s->hunts[i] = clime_hunt_new(p->compiled[i]);
}

/* Frees the searches early; the job may live on with other outputs. */
static void end_hunts(struct clime_stop_text *s) {
    for (int i = 0; i < CLIME_MAX_STOP_REGEX; i++) {
        clime_hunt_free(s->hunts[i]);
        s->hunts[i] = NULL;
    }
}

void clime_stop_text_free(struct clime_stop_text *s) {
    if (!s->params) return;
    clime_detok_free(&s->detok);
    clime_buf_free(&s->text);
    end_hunts(s);
    s->params = NULL;
}

static void end(struct clime_stop_text *s) {
    s->n_safe = s->text.len;
    s->done = true;
    end_hunts(s);
}

/* Finds the earliest stop string that ends after `from`; the first listed among equals. */
static bool search(struct clime_stop_text *s, size_t from, struct clime_str *matched) {
    const struct clime_sampling_params *p = s->params;
    size_t best = SIZE_MAX;
    for (int i = 0; i < p->n_stop && !s->no_search; i++) {
        size_t back = p->stop[i].len - 1, start = from > back ? from - back : 0;
        if (s->text.len < start + p->stop[i].len) continue;
        const char *hit = memmem(s->text.data + start, s->text.len - start, p->stop[i].ptr, p->stop[i].len);
        if (!hit || (size_t)(hit - s->text.data) >= best) continue;
        best = (size_t)(hit - s->text.data);
        *matched = p->stop[i];
    }
    if (best == SIZE_MAX) return false;
    s->text.len = p->no_stop_trim ? best + matched->len : best;
    end(s);
    return true;
}

/* Text length without the longest suffix that begins a stop string. */
static size_t safe_length(const struct clime_stop_text *s) {
    const struct clime_sampling_params *p = s->params;
    size_t hold = 0;
    for (int i = 0; i < p->n_stop; i++) {
        size_t n = p->stop[i].len - 1;
        if (n > s->text.len) n = s->text.len;
        while (n > hold && memcmp(s->text.data + s->text.len - n, p->stop[i].ptr, n) != 0) n--;
        if (n > hold) hold = n;
    }
    return s->text.len - hold;
}

/* Finds the first listed regular expression that matches: in the text extended by `more`, or without hunts in `more`
 * alone. */
static bool search_regex(struct clime_stop_text *s, struct clime_str more, struct clime_hunt *const *hunts,
                         struct clime_str *matched) {
    const struct clime_sampling_params *p = s->params;
    bool any = false;
    for (int i = 0; i < p->n_stop_regex && !s->no_search && more.len > 0; i++) {
        struct clime_hunt *alone = hunts ? NULL : clime_hunt_new(p->compiled[i]);
        enum clime_found found = clime_hunt_feed(hunts ? hunts[i] : alone, more);
        clime_hunt_free(alone);
        if (found == CLIME_FOUND_TOO_MUCH) s->stuck = true;
        if (found == CLIME_FOUND_ONE && !any) *matched = p->stop_regex[i];
        any |= found != CLIME_FOUND_NONE;
    }
    return any;
}

static struct clime_str text_from(const struct clime_stop_text *s, size_t from) {
    return s->text.len > from ? (struct clime_str){s->text.data + from, s->text.len - from}
                              : (struct clime_str){NULL, 0};
}

static bool find_special(const struct clime_stop_text *s, struct clime_str token, struct clime_str *matched) {
    const struct clime_sampling_params *p = s->params;
    for (int i = 0; i < p->n_stop && !s->no_search; i++)
        if (clime_str_eq(token, p->stop[i])) return *matched = p->stop[i], true;
    return false;
}

bool clime_stop_text_feed(struct clime_stop_text *s, int32_t id, struct clime_str *matched) {
    CHECK(!s->done);
    size_t from = s->text.len;
    clime_detok_feed(&s->detok, id, &s->text);
    if (s->text.len > from && search(s, from, matched)) return true;
    s->n_safe = safe_length(s);
    struct clime_str token = {NULL, 0};
    if (clime_tokenizer_is_special(s->detok.t, id)) token = clime_tokenizer_token(s->detok.t, id);
    if (find_special(s, token, matched)) {
        clime_stop_text_finish(s, &(struct clime_str){NULL, 0});
        return true;
    }
    if (!search_regex(s, text_from(s, from), s->hunts, matched) && !search_regex(s, token, NULL, matched)) return false;
    clime_detok_finish(&s->detok, &s->text);
    end(s);
    return !s->stuck;
}

bool clime_stop_text_finish(struct clime_stop_text *s, struct clime_str *matched) {
    if (s->done) return false;
    size_t from = s->text.len;
    clime_detok_finish(&s->detok, &s->text);
    if (s->text.len > from && search(s, from, matched)) return true;
    bool found = search_regex(s, text_from(s, from), s->hunts, matched);
    end(s);
    return found && !s->stuck;
}
