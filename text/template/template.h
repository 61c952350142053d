/* Chat templates: general Jinja as Hugging Face's `apply_chat_template` runs it.
 *
 * The semantics are those of Jinja2 3.1.6's immutable sandbox with trim_blocks and lstrip_blocks, the loopcontrols
 * extension, `{% generation %}`, and the functions that transformers adds (tojson, raise_exception, strftime_now):
 * Python's values, texts and truth, Jinja's scopes and undefined values. Unsupported features are rejected by name:
 * include, import, extends and autoescape (a chat template is one file of plain text), the filters random, pprint,
 * urlize, striptags, xmlattr, wordwrap and filesizeformat, arithmetic whose result is an integer past 64 bits.
 *
 * Nouns
 *   template   compiled source; immutable, shared by any number of threads without a lock.
 *   input      the variables of one rendering, as JSON text.
 *   limits     what one rendering may use. Neither a template nor a client's input can hang it or exhaust memory.
 *
 * Rendering needs up to 1 MiB of C stack (measured under 768 KiB at the greatest max_depth, under 2 MiB with
 * sanitizers), so it runs on text threads, never on HTTP workers.
 */
#ifndef CLIME_TEXT_TEMPLATE_TEMPLATE_H
#define CLIME_TEXT_TEMPLATE_TEMPLATE_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"
#include "text/template/spans.h"

struct clime_template;

/* Compiles source (copied). CLIME_ERR_INPUT with the line for a syntax error, CLIME_ERR_LIMIT past 1 MiB of source. */
enum clime_err clime_template_compile(struct clime_str source, struct clime_template **out, struct clime_error *e);
void clime_template_free(struct clime_template *t); /* NULL is fine */

/* A field of 0 means the default. */
struct clime_template_limits {
    size_t max_steps;  /* evaluated nodes and bytes looked at, in units of work; default 20 million (about a second) */
    size_t max_memory; /* bytes of values made while rendering; default 256 MiB */
    int max_depth;     /* nested evaluations (macro recursion); default 3000, at most 3000 */
};

struct clime_template_input {
    /* JSON objects whose members are the variables: messages, tools, add_generation_prompt, ... Of equal names the
     * later one counts. The texts must outlive the call. transformers passes tools and documents as null when there
     * are none; a caller that wants the same result passes them too. */
    const struct clime_str *vars;
    size_t n_vars;
    const char *bos_token, *eos_token; /* NULL = not defined; a variable of that name counts more */
    bool sort_tools; /* the variable tools with sorted keys, at every depth: clime_tokenizer_sorts_tools */
    int64_t now;     /* seconds since 1970 for strftime_now; 0 = the present */
    struct clime_template_limits limits;
};

void clime_spans_free(struct clime_spans *s); /* may be used again */

/* Appends the rendered text to out, and the spans to spans (NULL = not wanted). Errors: CLIME_ERR_INPUT (the variables
 * are not a JSON object; the template raised; an operation that fails in Python) with the template's line,
 * CLIME_ERR_LIMIT (a limit, or out's cap). On error out and spans are unchanged. */
enum clime_err clime_template_render(const struct clime_template *t, const struct clime_template_input *in,
                                     struct clime_buf *out, struct clime_spans *spans, struct clime_error *e);

/* True when the source has a `{% generation %}` block. */
bool clime_template_has_generation(const struct clime_template *t);

#endif
