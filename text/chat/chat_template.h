/* From messages to the text of a prompt, by the model's chat template: what chat, Responses, Messages, sessions,
 * /apply_template and rows of data have in common. Rendering needs a stack of 1 MiB (text/template/template.h).
 *
 * Nouns
 *   template    the folder's, or a file's; of a folder that has one named tool_use, that one where tools are given, as
 *               with transformers. Immutable but for what it has told; any thread.
 *   prompt      a conversation and how it is to be rendered.
 *   prepared    messages as text/chat/prepare.h makes them.
 *   told        what a conversation has and the template does not show (tools, calls, reasoning, a system message where
 *               it stands): a line in the log, once for each of the four, or an error where the template is strict;
 * loaders of rows count it instead (trainer/data/render.h).
 */
#ifndef CLIME_TEXT_CHAT_CHAT_TEMPLATE_H
#define CLIME_TEXT_CHAT_CHAT_TEMPLATE_H

#include "common/arena.h"
#include "text/chat/form.h"
#include "text/tokenizer.h"

#define CLIME_RENDER_MAX ((size_t)64 << 20) /* bytes of a rendered text */

struct clime_chat_template {
    const struct clime_tokenizer *tok; /* borrowed; NULL = a template by itself */
    struct clime_chat_form plain;      /* compiled NULL = the model has none */
    struct clime_chat_form with_tools; /* compiled NULL = plain is for tools too */
    const char *bos, *eos;             /* borrowed from the tokenizer; NULL = none */
    bool sorts_tools;                  /* the tokenizer's class does */
    bool strict;                       /* set by the owner: what would be told is refused */
    struct clime_str kwargs;           /* set by the owner: variables of every rendering, a JSON object; borrowed */
    struct clime_chat_told *told;
    unsigned *lost; /* set by the owner, NULL: enum clime_chat_lost is added here in place of the log's line */
};

/* file NULL: the folder's own templates. A folder without one is no error. Looks at what they show on the calling
 * thread, which needs a stack of 1 MiB. */
enum clime_err clime_chat_template_open(struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                        const char *file, struct clime_error *e);
void clime_chat_template_close(struct clime_chat_template *t); /* zero-initialised is fine */

/* The one that renders a conversation with these tools (raw JSON; empty, null or [] = none). Its compiled may be NULL.
 */
const struct clime_chat_form *clime_chat_form_for(const struct clime_chat_template *t, struct clime_str tools);
/* How the model writes reasoning, and calls of tools that it is shown. */
const struct clime_output_parser *clime_chat_reasoning(const struct clime_chat_template *t);
const struct clime_call_format *clime_chat_calls(const struct clime_chat_template *t);

enum clime_thinking { CLIME_THINKING_UNSAID, CLIME_THINKING_ON, CLIME_THINKING_OFF };

/* A conversation as somebody gave it: raw JSON values, borrowed; empty = absent. */
struct clime_chat_prompt {
    struct clime_str messages;
    struct clime_str tools;
    struct clime_str kwargs;           /* chat_template_kwargs: an object of further variables */
    struct clime_str reasoning_effort; /* a JSON value */
    enum clime_thinking thinking;      /* enable_thinking: the same by the names that templates have for it */
    bool no_generation_prompt;
    bool continue_final; /* continue_final_message: go on within the last message */
    bool drop_oldest;    /* one that is too long loses its oldest messages (server/job/chat_newest.h) */
};

/* Reads enable_thinking, a boolean, into the clime_thinking at `object` (a row of common/json/members.h). */
bool clime_chat_read_thinking(struct clime_json *j, void *object);

/* Appends the prompt's messages, prepared for the template that its tools choose. CLIME_ERR_INPUT: no template, no
 * messages or bad ones, tools that are no list of objects, or, where the template is strict, what it does not show. */
enum clime_err clime_chat_prepared(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                   struct clime_buf *out, struct clime_error *e);

/* Appends the rendered text. spans: of the template's {% generation %} blocks, or NULL. CLIME_ERR_INPUT: as above, or
 * what the template raised. */
enum clime_err clime_chat_render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                 struct clime_buf *out, struct clime_spans *spans, struct clime_error *e);

/* The same for the first n of messages that are prepared; the prompt's own are not looked at. */
enum clime_err clime_chat_render_list(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                      const struct clime_str *prepared, int n, struct clime_buf *out,
                                      struct clime_spans *spans, struct clime_error *e);

/* Where a conversation that goes on within its last message ends: in that message's content, or in its reasoning where
 * it has no content yet. False when it has neither. The text lies in messages or in a. */
bool clime_chat_final(struct clime_str messages, struct clime_arena *a, struct clime_str *out, bool *reasoning);

/* Appends the tokens that the template writes behind an answer, up to the last that ends a turn; where none of them
 * does, or there is no template, the tokenizer's end of a text follows. Nothing where there is no such token either. */
void clime_chat_turn_end(const struct clime_chat_template *t, struct clime_tok_scratch *scratch, struct clime_ids *out);

#endif
