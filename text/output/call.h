/* Tool calls in an output, and descriptions of the forms in which models write them.
 *
 *   call     name and arguments. Arguments are JSON text, converted if the model writes tags.
 *   form     a call's opening, separator and end, and its reader.
 *   format   a model family's forms, and the section around its calls if any (call_formats.h).
 *   reader   progress in the current call (call_readers.h).
 *
 * A call is announced once its name is known and its arguments begin; the arguments then grow. A call found invalid
 * (not JSON, truncated) is void: its text is content, from its opening marker on.
 */
#ifndef CLIME_TEXT_OUTPUT_CALL_H
#define CLIME_TEXT_OUTPUT_CALL_H

#include "common/json/walk.h"
#include "text/output/tools.h"

#define CLIME_MAX_CALL_FORMS 2

struct clime_parse;

struct clime_call {
    struct clime_buf name;
    struct clime_buf id; /* as written by the model; empty = none in its format */
    struct clime_buf args;
    bool void_; /* not a call */
};

struct clime_calls { /* zero-initialise */
    struct clime_call *at;
    int n, size;
};

enum clime_call_step { CLIME_CALL_MORE, CLIME_CALL_DONE, CLIME_CALL_BAD };

struct clime_call_form {
    const char *begin; /* "" = anything after the section's opening; NULL = a line that is a tool's name */
    /* Reads on from p->seen. DONE: the call ends at p->seen. BAD: not a call, text up to p->seen is content. last: the
     * text is complete, so it must not return MORE. */
    enum clime_call_step (*read)(struct clime_parse *p, struct clime_str text, bool last);
    const char *separator; /* between name and arguments */
    const char *end;       /* closes a call; may be missing in the text; NULL = none */
    bool repeats;          /* begin "": at every possible call start, not only after the section's opening */
    bool keep_begin;       /* the reader needs the opening too */
    bool bare;             /* has no marker: if tools are known, its name must be one of theirs */
    bool function_id;      /* the name is functions.NAME:INDEX, which is the id */
    /* tags */
    const char *name_open, *name_close, *key_open, *key_close, *value_open, *value_close, *close;
    bool trim_newline; /* strip a newline at either end of a value */
    bool untyped_json; /* a value without a schema is JSON if it parses */
};

struct clime_call_format {
    const char *name, *aliases; /* "a|b" */
    const char *section_open, *section_close;
    const char *between; /* characters allowed between calls, besides white space */
    bool goes_on;        /* text may follow its section; else the section ends the reply */
    bool keeps_space;    /* white space before the first marker is content, as the family's templates keep it */
    struct clime_call_form forms[CLIME_MAX_CALL_FORMS];
};

/* A reader's state within a call; zeroed at its start. */
struct clime_call_reader {
    const struct clime_call_form *form;
    int phase;
    size_t from; /* start of the current name, key or value */
    size_t key_begin, key_end;
    size_t name_begin, name_end;
    size_t args_begin, args_end; /* JSON arguments; 0 = not yet */
    size_t none_begin;           /* arguments that are not an object: must be null or "" */
    size_t json_end;
    unsigned types; /* of the current value */
    int depth;      /* Python: open brackets, and the quote */
    char quote;
    bool escaped;
    int n_params;
    struct clime_json_walk walk;
    int call; /* index in calls; -1 = not announced */
};

#endif
