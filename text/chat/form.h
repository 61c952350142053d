/* A compiled chat template and what it can show, found out by rendering messages made for it. Immutable; any thread. */
#ifndef CLIME_TEXT_CHAT_FORM_H
#define CLIME_TEXT_CHAT_FORM_H

#include "text/output/output_parser.h"
#include "text/template/template.h"

enum clime_chat_shows {
    CLIME_CHAT_PARTS = 1,           /* a user's content that is a list of text parts */
    CLIME_CHAT_TEXT_ARGS = 2,       /* arguments of a call as the text that the model wrote */
    CLIME_CHAT_OBJECT_ARGS = 4,     /* arguments of a call as an object; also set when it shows neither */
    CLIME_CHAT_CALLS = 8,           /* an assistant's tool_calls (or it raises an error) */
    CLIME_CHAT_TOOLS = 16,          /* the list of tools */
    CLIME_CHAT_REASONING = 32,      /* an assistant's reasoning */
    CLIME_CHAT_ANY_ROLE = 64,       /* messages of every role, or it raises an error for one that it does not know */
    CLIME_CHAT_SYSTEM = 128,        /* a system message at the beginning (or it raises an error) */
    CLIME_CHAT_SYSTEMS = 256,       /* both of two at the beginning (or it raises an error) */
    CLIME_CHAT_LATE_SYSTEM = 512,   /* one behind other messages (or it raises an error) */
    CLIME_CHAT_TOOL_PARTS = 1024,   /* a list of text parts that is a tool's content */
    CLIME_CHAT_OTHER_PARTS = 2048,  /* one that is a system's content, and an assistant's */
    CLIME_CHAT_SYSTEMS_APART = 4096 /* one at the beginning and one behind other messages (or it raises an error) */
};

struct clime_chat_form {
    struct clime_template *compiled; /* NULL = there is none */
    char *source;
    unsigned shows;      /* enum clime_chat_shows */
    const char *thought; /* the member that it reads an assistant's reasoning from */
    /* how its model writes reasoning and calls, by what the template shows; calls NULL = it shows none */
    const struct clime_output_parser *reasoning;
    const struct clime_call_format *calls;
};

/* The members that clients and data have reasoning under: clime_chat_form.thought is one of these. Ended by NULL. */
extern const char *const clime_chat_thoughts[];

/* Compiles source (copied) and looks at what it shows: about 35 small renderings, on a thread with a stack of 1 MiB. */
enum clime_err clime_chat_form_open(struct clime_chat_form *f, struct clime_str source, struct clime_error *e);
void clime_chat_form_close(struct clime_chat_form *f); /* zero-initialised is fine */

/* Whether the template's source names the role, in quotes. */
bool clime_chat_form_names(const struct clime_chat_form *f, struct clime_str role);

#endif
