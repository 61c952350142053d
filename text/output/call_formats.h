/* The table of formats of tool calls: which forms a model family writes them in (call.h). Constant; any thread. */
#ifndef CLIME_TEXT_OUTPUT_CALL_FORMATS_H
#define CLIME_TEXT_OUTPUT_CALL_FORMATS_H

#include "text/output/call.h"
#include "text/tokenizer.h"

/* The table; ends with name == NULL. Found by name or alias (SGLang's, vLLM's). */
extern const struct clime_call_format clime_call_formats[];
const struct clime_call_format *clime_call_format_find(const char *name);
void clime_call_format_names(struct clime_buf *out); /* "a|b|c" */

/* The format that a chat template shows, or NULL. */
const struct clime_call_format *clime_call_format_of_template(struct clime_str source);

/* Does a marker that no other text has begin every call, or every section of them? f may be NULL: no. */
bool clime_call_format_is_marked(const struct clime_call_format *f);

/* Whether its calls can be held to a grammar; f may be NULL: no. */
bool clime_call_format_can_be_grammar(const struct clime_call_format *f);

/* Does the format write this token as (a part of) a marker? */
bool clime_call_format_has_marker(const struct clime_call_format *f, struct clime_str token);
/* Appends the special tokens that the format writes as (parts of) markers. f may be NULL: none. */
void clime_call_format_markers(const struct clime_call_format *f, const struct clime_tokenizer *t,
                               struct clime_ids *out);

#endif
