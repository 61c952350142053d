/* Table of tool call formats by model family (call.h). Constant; any thread. */
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

/* True if a unique marker begins every call or section. f may be NULL: false. */
bool clime_call_format_is_marked(const struct clime_call_format *f);

/* True if a grammar can constrain its calls; f may be NULL: false. */
bool clime_call_format_can_be_grammar(const struct clime_call_format *f);

/* True if the token is (a part of) a marker of the format. */
bool clime_call_format_has_marker(const struct clime_call_format *f, struct clime_str token);
/* Appends the special tokens in the format's markers. f may be NULL: none. */
void clime_call_format_markers(const struct clime_call_format *f, const struct clime_tokenizer *t,
                               struct clime_ids *out);

#endif
