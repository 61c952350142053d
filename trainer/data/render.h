/* Messages to text by the checkpoint's own chat template: what rl's prompts and sft's conversations have in common.
 *
 * A renderer is opened once for a file of data and used by one thread. */
#ifndef CLIME_TRAINER_DATA_RENDER_H
#define CLIME_TRAINER_DATA_RENDER_H

#include "text/template/template.h"
#include "text/tokenizer.h"

#define CLIME_RENDER_MAX ((size_t)64 << 20) /* bytes of a rendered text */

struct clime_renderer {
    const struct clime_tokenizer *tok; /* borrowed */
    struct clime_template *template;
    struct clime_str kwargs; /* more variables, a JSON object; borrowed */
};

/* Loads the tokenizer of a model that is trained or evaluated on texts: one with a token that the model has no row for
 * is an error where it is encoded, and so is a token that ends a turn here. Errors: clime_tokenizer_load's,
 * clime_config_load's, CLIME_ERR_INPUT. */
enum clime_err clime_data_tokenizer(const char *dir, struct clime_tokenizer **out, struct clime_error *e);

/* CLIME_ERR_INPUT: no chat template, or one that does not compile. */
enum clime_err clime_renderer_open(const struct clime_tokenizer *tok, const char *kwargs, struct clime_renderer *r,
                                   struct clime_error *e);
void clime_renderer_close(struct clime_renderer *r); /* zero-initialised is fine */

/* Appends the text of messages, a JSON array. tools: a JSON array, or ptr NULL for none. spans: of the template's
 * {% generation %} blocks, or NULL. Errors: the template's. */
enum clime_err clime_renderer_run(const struct clime_renderer *r, struct clime_str messages, struct clime_str tools,
                                  bool add_generation_prompt, struct clime_buf *out, struct clime_spans *spans,
                                  struct clime_error *e);

/* The same for messages as raw JSON values, the first n of a list. */
enum clime_err clime_renderer_run_list(const struct clime_renderer *r, const struct clime_str *messages, int n,
                                       struct clime_str tools, bool add_generation_prompt, struct clime_buf *out,
                                       struct clime_spans *spans, struct clime_error *e);

/* Whether the token ends a turn: one of the tokenizer's eos ids. */
bool clime_renderer_ends_turn(const struct clime_renderer *r, int32_t id);

#endif
