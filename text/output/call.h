/* Tool calls in an output: the calls themselves, and what describes the forms in which models write them.
 *
 *   call     name and arguments. The arguments are JSON text; where a model writes tags instead, the text is made.
 *   form     how one call begins, what stands between name and arguments, how it ends; which reader reads it.
 *   format   a model family's forms, and the section that holds its calls if it has one (call_formats.h).
 *   reader   how far the call in work is read (call_readers.h).
 *
 * A call is announced as soon as its name is known and its arguments begin, and its arguments grow as they come. One
 * that turns out to be none (no JSON, cut off) is void: its text is content, from its opening marker on.
 */
#ifndef CLIME_TEXT_OUTPUT_CALL_H
#define CLIME_TEXT_OUTPUT_CALL_H

#include "common/json/walk.h"
#include "text/output/tools.h"

#define CLIME_MAX_CALL_FORMS 2

struct clime_parse;

struct clime_call {
    struct clime_buf name;
    struct clime_buf id; /* as the model wrote it; empty = its format has none */
    struct clime_buf args;
    bool void_; /* no call after all */
};

struct clime_calls { /* zero-initialise */
    struct clime_call *at;
    int n, size;
};

enum clime_call_step { CLIME_CALL_MORE, CLIME_CALL_DONE, CLIME_CALL_BAD };

struct clime_call_form {
    const char *begin; /* "" = whatever follows the section's opening; NULL = a line that is a tool's name */
    /* Reads on from p->seen. DONE: the call ends at p->seen. BAD: it is none, text up to p->seen is content. last: no
     * more will come, so the answer is not MORE. */
    enum clime_call_step (*read)(struct clime_parse *p, struct clime_str text, bool last);
    const char *separator; /* between name and arguments */
    const char *end;       /* closes a call; may be missing; NULL = none */
    bool repeats;          /* begin "": wherever a call may begin, not only behind the section's opening */
    bool keep_begin;       /* the reader wants the opening too */
    bool bare;             /* no marker tells it from text: its name must be that of a tool where tools are known */
    bool function_id;      /* the name is functions.NAME:INDEX, and that is the id */
    /* tags */
    const char *name_open, *name_close, *key_open, *key_close, *value_open, *value_close, *close;
    bool trim_newline; /* a newline at either end of a value is layout */
    bool untyped_json; /* a value without a schema is JSON where it is JSON */
};

struct clime_call_format {
    const char *name, *aliases; /* "a|b" */
    const char *section_open, *section_close;
    const char *between; /* characters that may stand between calls, beside white space */
    bool goes_on;        /* behind its section comes text; otherwise it ends the reply */
    bool keeps_space;    /* white space before the first marker is content: templates of the family keep it */
    struct clime_call_form forms[CLIME_MAX_CALL_FORMS];
};

/* Where a reader is within a call; zeroed when one begins. */
struct clime_call_reader {
    const struct clime_call_form *form;
    int phase;
    size_t from; /* of what is being read: a name, a key, a value */
    size_t key_begin, key_end;
    size_t name_begin, name_end;
    size_t args_begin, args_end; /* JSON arguments: where they stand; 0 = not yet */
    size_t none_begin;           /* a value of the arguments that is no object: null or "", or it is no call */
    size_t json_end;
    unsigned types; /* of the value */
    int depth;      /* Python: brackets that are open, and the quote */
    char quote;
    bool escaped;
    int n_params;
    struct clime_json_walk walk;
    int call; /* index in calls; -1 = not announced */
};

#endif
