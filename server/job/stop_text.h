/* The text of one output as its tokens arrive, and the search for stop strings in it.
 *
 * Where a stop string ends a sequence depends on the token ids alone: at the first token after which the decoded text
 * contains one. Detokenising runs off the engine, which may have sampled further tokens by then; the emitter drops
 * them, so the outcome does not depend on timing. A stop string that spells a special token ("<|im_end|>") also matches
 * when that token is hidden from the text. The same holds for stop_regex, except that (as in SGLang) the match stays in
 * the text, and so does the rest of the token that completes it.
 *
 * Owner: the output's emitter thread.
 */
#ifndef CLIME_SERVER_JOB_STOP_TEXT_H
#define CLIME_SERVER_JOB_STOP_TEXT_H

#include "server/job/sampling_params.h"
#include "text/tokenizer.h"

#define CLIME_MAX_TEXT ((size_t)64 << 20) /* bytes of one output's text */

struct clime_stop_text {
    const struct clime_sampling_params *params;
    struct clime_detok detok;
    struct clime_buf text;
    size_t n_safe; /* bytes that no later token can remove: the rest may begin a stop string */
    bool done;
    bool no_search; /* the token limit was reached first: ignore stop strings */
    bool stuck;     /* a regular expression is too ambiguous for the text: the output fails */
    struct clime_hunt *hunts[CLIME_MAX_STOP_REGEX]; /* one per regular expression */
};

/* prompt: the ids before the text. SentencePiece-style tokenizers drop the space before the first word of a text, but
 * not of a continuation. */
void clime_stop_text_init(struct clime_stop_text *s, const struct clime_tokenizer *t,
                          const struct clime_sampling_params *p, const int32_t *prompt, int n_prompt);
void clime_stop_text_free(struct clime_stop_text *s);

/* Adds a token. True when it completes a stop string or a regular expression's match, with *matched set to it and done
 * set; a stop string trims the text before it (unless no_stop_trim). False with stuck and done set when the search is
 * undecidable. */
bool clime_stop_text_feed(struct clime_stop_text *s, int32_t id, struct clime_str *matched);

/* No more tokens: adds the held-back bytes. True when they complete a stop string, as above. */
bool clime_stop_text_finish(struct clime_stop_text *s, struct clime_str *matched);

/* The final part of the text. */
static inline struct clime_str clime_stop_text_safe(const struct clime_stop_text *s) {
    return (struct clime_str){s->text.data ? s->text.data : "", s->n_safe};
}

#endif
