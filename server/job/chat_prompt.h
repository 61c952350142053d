/* From messages to a prompt: the chat template, then the tokenizer. Runs on text threads. */
#ifndef CLIME_SERVER_JOB_CHAT_PROMPT_H
#define CLIME_SERVER_JOB_CHAT_PROMPT_H

#include "common/arena.h"
#include "text/output/output_parser.h"
#include "text/template/chat.h"
#include "text/tokenizer.h"

/* The model's template, compiled once at start. Immutable; any thread. */
struct clime_chat_template {
    struct clime_template *compiled; /* NULL = the model has none */
    unsigned takes;                  /* enum clime_chat_takes */
    const char *bos, *eos;           /* borrowed from the tokenizer; NULL = none */
    bool sorts_tools;                /* the tokenizer's class does */
    /* how its model writes reasoning and calls, by what the template shows; calls NULL = it shows none */
    const struct clime_output_parser *reasoning;
    const struct clime_call_format *calls;
};

/* file NULL: the folder's own template. A folder without one is no error. Compiles on the calling thread, which needs
 * a large stack (a text thread). */
enum clime_err clime_chat_template_open(struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                        const char *file, struct clime_error *e);
void clime_chat_template_close(struct clime_chat_template *t);

enum clime_thinking { CLIME_THINKING_UNSAID, CLIME_THINKING_ON, CLIME_THINKING_OFF };

/* A conversation as the client gave it: raw JSON values, borrowed from its body; empty = absent. */
struct clime_chat_prompt {
    struct clime_str messages;
    struct clime_str tools;
    struct clime_str kwargs;           /* chat_template_kwargs: an object of further variables */
    struct clime_str reasoning_effort; /* a JSON value */
    enum clime_thinking thinking;      /* enable_thinking: the same by the names that templates have for it */
    bool no_generation_prompt;
    bool continue_final; /* continue_final_message: go on within the last message */
    bool drop_oldest;    /* one that is too long loses its oldest messages (chat_newest.h) */
};

/* Reads enable_thinking, a boolean, into the clime_thinking at `object` (a row of common/json/members.h). */
bool clime_chat_read_thinking(struct clime_json *j, void *object);

/* Appends the rendered text. CLIME_ERR_INPUT: no template, bad messages, or what the template raised. */
enum clime_err clime_chat_render(const struct clime_chat_template *t, const struct clime_chat_prompt *p,
                                 struct clime_buf *out, struct clime_error *e);

/* Where a conversation that goes on within its last message ends: in that message's content, or in its reasoning where
 * it has no content yet. False when it has neither as text. The text lies in messages or in a. */
bool clime_chat_final(struct clime_str messages, struct clime_arena *a, struct clime_str *out, bool *reasoning);

#endif
