/* Readers of request fields that set a grammar, in the forms of SGLang, vLLM and OpenAI. Used by the member tables of
 * sampling_params.c and the endpoints' parsers; HTTP workers. Strings borrow from the body or the scanner's arena.
 */
#ifndef CLIME_SERVER_JOB_GRAMMAR_FIELDS_H
#define CLIME_SERVER_JOB_GRAMMAR_FIELDS_H

#include "common/json/members.h"
#include "text/grammar/source.h"

/* object: struct clime_grammar_source. A second grammar in one request is an error. */
bool clime_grammar_read_regex(struct clime_json *j, void *object);
bool clime_grammar_read_ebnf(struct clime_json *j, void *object);
bool clime_grammar_read_schema(struct clime_json *j, void *object); /* an object, or its JSON as a string */
bool clime_grammar_read_tags(struct clime_json *j, void *object);
bool clime_grammar_read_choice(struct clime_json *j, void *object);
bool clime_grammar_read_object(struct clime_json *j, void *object); /* {"json" | "regex" | "choice" | ...: ...} */
/* OpenAI's {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": ...}}, and the flat form of
 * Responses and Messages, with "schema" beside "type". */
bool clime_grammar_read_format(struct clime_json *j, void *object);

#endif
