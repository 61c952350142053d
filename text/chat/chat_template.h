/* Renders messages to a prompt's text with the model's chat template: shared by chat, Responses, Messages, sessions,
 * /apply_template and data rows. Rendering needs a stack of 1 MiB (text/template/template.h).
 *
 * Nouns
 *   template    the folder's or a file's; if the folder has one named tool_use, that one when there are tools, as in
 *               transformers. Immutable except for `told`; any thread.
 *   prompt      a conversation and its rendering options.
 *   prepared    messages after text/chat/prepare.h.
 *   told        parts of a conversation that the template does not show (tools, calls, reasoning, a system message in
 *               its place): logged once for each of the four, or an error if the template is strict; data loaders count
 *               them instead (trainer/data/render.h).
 */
#ifndef CLIME_TEXT_CHAT_CHAT_TEMPLATE_H
#define CLIME_TEXT_CHAT_CHAT_TEMPLATE_H

#include "common/arena.h"
#include "text/chat/form.h"
#include "text/tokenizer.h"

#define CLIME_RENDER_MAX ((size_t)64 << 20) /* most bytes of a rendered text */

struct clime_chat_template {
    const struct clime_tokenizer *tok; /* borrowed; NULL = template only */
    struct clime_chat_form plain;      /* compiled NULL = no template */
    struct clime_chat_form with_tools; /* compiled NULL = plain serves tools too */
    const char *bos, *eos;             /* borrowed from the tokenizer; NULL = none */
    bool sorts_tools;                  /* as the tokenizer's class does */
    bool strict;                       /* set by the owner: fail where it would log */
    struct clime_str kwargs;           /* set by the owner: variables for every rendering, a JSON object; borrowed */
    struct clime_chat_told *told;
    unsigned *lost; /* set by the owner, or NULL: collects enum clime_chat_lost instead of logging */
};

/* file NULL: the folder's own templates. A folder without one is not an error. Probes what they show on the calling
 * thread, which needs a stack of 1 MiB. */
enum clime_err clime_chat_template_open(struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                        const char *file, struct clime_error *e);
void clime_chat_template_close(struct clime_chat_template *t); /* zero-initialised is fine */

/* The form for a conversation with these tools (raw JSON; empty, null or [] = none). Its compiled may be NULL. */
const struct clime_chat_form *clime_chat_form_for(const struct clime_chat_template *t, struct clime_str tools);
/* The model's formats of reasoning and of tool calls. */
const struct clime_output_parser *clime_chat_reasoning(const struct clime_chat_template *t);
const struct clime_call_format *clime_chat_calls(const struct clime_chat_template *t);

enum clime_thinking { CLIME_THINKING_UNSAID, CLIME_THINKING_ON, CLIME_THINKING_OFF };

/* A conversation as received: raw JSON values, borrowed; empty = absent. */
struct clime_chat_prompt {
    struct clime_str messages;
    struct clime_str tools;
    struct clime_str kwargs;           /* chat_template_kwargs: an object of extra variables */
    struct clime_str reasoning_effort; /* a JSON value */
    enum clime_thinking thinking;      /* enable_thinking, set under each template's name for it */
    bool no_generation_prompt;
    bool continue_final; /* continue_final_message: continue the last message */
    bool drop_oldest;    /* drop the oldest messages if too long (server/job/chat_newest.h) */
};

/* Reads enable_thinking, a boolean, into the clime_thinking at `object` (a row of common/json/members.h). */
bool clime_chat_read_thinking(struct clime_json *j, void *object);

/* Appends the prompt's messages, prepared for the template that its tools choose. CLIME_ERR_INPUT: no template, missing
 * or bad messages, tools that are not a list of objects, or, with a strict template, parts that it does not show. */
enum clime_err clime_chat_prepared(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                   struct clime_buf *out, struct clime_error *e);

/* Appends the rendered text. spans: of the template's {% generation %} blocks, or NULL. CLIME_ERR_INPUT: as above, or
 * an error raised by the template. */
enum clime_err clime_chat_render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                 struct clime_buf *out, struct clime_spans *spans, struct clime_error *e);

/* The same for the first n prepared messages; ignores the prompt's own. */
enum clime_err clime_chat_render_list(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                      const struct clime_str *prepared, int n, struct clime_buf *out,
                                      struct clime_spans *spans, struct clime_error *e);

/* The text that a continued last message ends with: its content, or its reasoning if it has no content yet. False when
 * it has neither. *out points into messages or a. */
bool clime_chat_final(struct clime_str messages, struct clime_arena *a, struct clime_str *out, bool *reasoning);

/* Appends the tokens that the template writes after an answer, up to the last that ends a turn; if none does, or
 * without a template, the tokenizer's end of text; without that, nothing. */
void clime_chat_turn_end(const struct clime_chat_template *t, struct clime_tok_scratch *scratch, struct clime_ids *out);

#endif
