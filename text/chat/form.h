/* A compiled chat template and its capabilities, found by rendering probe messages. Immutable; any thread. */
#ifndef CLIME_TEXT_CHAT_FORM_H
#define CLIME_TEXT_CHAT_FORM_H

#include "text/output/output_parser.h"
#include "text/template/template.h"

enum clime_chat_shows {
    CLIME_CHAT_PARTS = 1,           /* user content as a list of text parts */
    CLIME_CHAT_TEXT_ARGS = 2,       /* call arguments as the model's text */
    CLIME_CHAT_OBJECT_ARGS = 4,     /* call arguments as an object; also set when it shows neither */
    CLIME_CHAT_CALLS = 8,           /* assistant tool_calls (or raises an error) */
    CLIME_CHAT_TOOLS = 16,          /* the list of tools */
    CLIME_CHAT_REASONING = 32,      /* assistant reasoning */
    CLIME_CHAT_ANY_ROLE = 64,       /* messages of every role, or raises an error for an unknown one */
    CLIME_CHAT_SYSTEM = 128,        /* a leading system message (or raises an error) */
    CLIME_CHAT_SYSTEMS = 256,       /* two leading ones (or raises an error) */
    CLIME_CHAT_LATE_SYSTEM = 512,   /* one after other messages (or raises an error) */
    CLIME_CHAT_TOOL_PARTS = 1024,   /* tool content as a list of text parts */
    CLIME_CHAT_OTHER_PARTS = 2048,  /* system and assistant content likewise */
    CLIME_CHAT_SYSTEMS_APART = 4096 /* one leading and one after other messages (or raises an error) */
};

struct clime_chat_form {
    struct clime_template *compiled; /* NULL = none */
    char *source;
    unsigned shows;      /* enum clime_chat_shows */
    const char *thought; /* member from which it reads reasoning */
    /* the model's formats, by what the template shows; calls NULL = none */
    const struct clime_output_parser *reasoning;
    const struct clime_call_format *calls;
};

/* Member names of reasoning in clients and data; clime_chat_form.thought is one of them. NULL-terminated. */
extern const char *const clime_chat_thoughts[];

/* Compiles source (copied) and probes it: about 35 small renderings, on a thread with a stack of 1 MiB. */
enum clime_err clime_chat_form_open(struct clime_chat_form *f, struct clime_str source, struct clime_error *e);
void clime_chat_form_close(struct clime_chat_form *f); /* zero-initialised is fine */

/* True if the template's source contains the role in quotes. */
bool clime_chat_form_names(const struct clime_chat_form *f, struct clime_str role);

#endif
