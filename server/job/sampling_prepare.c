/* Prepares sampling parameters (sampling_prepare.h). Called by text pool tasks; the parameters own the results until
 * the request's worker releases them.
 *
 * bad_words follow vLLM: a word is its ids at the start of a text, plus its ids after a space if they are as many and
 * start differently. A model may still spell it in other tokens.
 */
#include "server/job/sampling_prepare.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

bool clime_sampling_unprepared(const struct clime_sampling_params *p) {
    return (p->n_stop_regex > 0 && !p->compiled) || (p->n_bad_words > 0 && !p->bad);
}

static enum clime_err compile(struct clime_sampling_params *p, struct clime_error *e) {
    p->compiled = xcalloc((size_t)p->n_stop_regex, sizeof *p->compiled);
    for (int i = 0; i < p->n_stop_regex; i++)
        if (clime_search_new(p->stop_regex[i], &p->compiled[i], e)) return clime_error_prefix(e, "stop_regex");
    return CLIME_OK;
}

static struct clime_str without_space_before(struct clime_str s) {
    while (s.len > 0 && strchr(" \t\n\v\f\r", s.ptr[0])) s = (struct clime_str){s.ptr + 1, s.len - 1};
    return s;
}

static enum clime_err encode(struct clime_sampling_params *p, struct clime_str word, const struct clime_tokenizer *t,
                             struct clime_tok_scratch *scratch, struct clime_buf *spaced, struct clime_error *e) {
    struct clime_ids *first = &p->bad[p->n_bad], *other = first + 1;
    word = without_space_before(word);
    if (word.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "bad_words: a word is empty");
    clime_buf_clear(spaced);
    clime_buf_add(spaced, " ", 1);
    clime_buf_add(spaced, word.ptr, word.len);
    enum clime_err err = clime_tokenizer_encode(t, scratch, word, 0, word.len, first, e);
    p->n_bad++;
    if (!err) err = clime_tokenizer_encode(t, scratch, clime_buf_str(spaced), 0, spaced->len, other, e);
    if (err) return clime_error_prefix(e, "bad_words");
    if (first->len == 0) return clime_fail(e, CLIME_ERR_INPUT, "bad_words: a word has no tokens");
    if (other->len == first->len && other->data[0] != first->data[0])
        p->n_bad++;
    else
        clime_ids_free(other);
    return CLIME_OK;
}

enum clime_err clime_sampling_prepare(struct clime_sampling_params *p, const struct clime_tokenizer *t,
                                      struct clime_tok_scratch *scratch, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    struct clime_buf spaced;
    if (!clime_sampling_unprepared(p)) return CLIME_OK;
    clime_buf_init(&spaced, 2 * CLIME_MAX_STOP_BYTES);
    if (p->n_stop_regex > 0) err = compile(p, e);
    if (p->n_bad_words > 0) p->bad = xcalloc(2 * (size_t)p->n_bad_words, sizeof *p->bad);
    for (int i = 0; i < p->n_bad_words && !err; i++) err = encode(p, p->bad_words[i], t, scratch, &spaced, e);
    clime_buf_free(&spaced);
    return err;
}

void clime_sampling_release(struct clime_sampling_params *p) {
    for (int i = 0; p->compiled && i < p->n_stop_regex; i++) clime_search_free(p->compiled[i]);
    for (int i = 0; p->bad && i < 2 * p->n_bad_words; i++) clime_ids_free(&p->bad[i]);
    free(p->compiled);
    free(p->bad);
    p->compiled = NULL;
    p->bad = NULL;
    p->n_bad = 0;
}
