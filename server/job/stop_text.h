/* The text of one output as its tokens arrive, and the search for stop strings in it.
 *
 * Where a stop string ends a sequence depends on the token ids alone: it is the first token after which the decoded
 * text contains a stop string. Detokenising happens off the engine, so the engine may have sampled further tokens by
 * then; the emitter cuts them off, and the outcome does not depend on timing.
 * A stop string that spells a special token ("<|im_end|>") is also found when that token is hidden from the text.
 * The same holds for the regular expressions of stop_regex, but for this (SGLang's way): what one matches stays in the
 * text, and so does the rest of the token that completes it.
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
    size_t n_safe; /* bytes that no later token can take back: the rest may begin a stop string */
    bool done;
    bool no_search; /* the token limit came first: stop strings no longer count */
    bool stuck;     /* a regular expression has too many ways to read the text: the output fails */
    struct clime_hunt *hunts[CLIME_MAX_STOP_REGEX]; /* of each regular expression */
};

/* prompt: what the text goes on from. SentencePiece-style tokenizers drop the space before the first word of a text;
 * the first word of a continuation keeps its own. */
void clime_stop_text_init(struct clime_stop_text *s, const struct clime_tokenizer *t,
                          const struct clime_sampling_params *p, const int32_t *prompt, int n_prompt);
void clime_stop_text_free(struct clime_stop_text *s);

/* Adds a token. True when it completes a stop string or a match of a regular expression: then *matched is that string,
 * the text is trimmed before it (unless no_stop_trim), or *matched is that expression, and done is set. False with
 * stuck set when that cannot be told; done is set then too. */
bool clime_stop_text_feed(struct clime_stop_text *s, int32_t id, struct clime_str *matched);

/* No more tokens: adds what was held back. True when that completes a stop string, as above. */
bool clime_stop_text_finish(struct clime_stop_text *s, struct clime_str *matched);

/* The text as far as it is final. */
static inline struct clime_str clime_stop_text_safe(const struct clime_stop_text *s) {
    return (struct clime_str){s->text.data ? s->text.data : "", s->n_safe};
}

#endif
