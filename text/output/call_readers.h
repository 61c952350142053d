/* Parsing a reply into text and calls: text, sections and calls (call_parse.c), and the readers of a single call
 * (call_json.c, call_python.c, call_tags.c). Used by the owner of the parse.
 */
#ifndef CLIME_TEXT_OUTPUT_CALL_READERS_H
#define CLIME_TEXT_OUTPUT_CALL_READERS_H

#include "text/output/parse.h"

struct clime_call *clime_call_of(struct clime_parse *p); /* the current call; must be announced */
/* Announces the call. False for an invalid name (characters, length, or not a tool's name where required). */
bool clime_call_announce(struct clime_parse *p, struct clime_str text, struct clime_str name);

/* White space, then the form's closing marker, which may be missing: DONE with p->seen after it. */
enum clime_call_step clime_call_close(struct clime_parse *p, struct clime_str text, bool last, const char *marker);

/* The readers: {"name": ..., "arguments": {...}}, NAME separator {...}, Python, and tags. */
enum clime_call_step clime_call_read_object(struct clime_parse *p, struct clime_str text, bool last);
enum clime_call_step clime_call_read_header(struct clime_parse *p, struct clime_str text, bool last);
enum clime_call_step clime_call_read_python(struct clime_parse *p, struct clime_str text, bool last);
enum clime_call_step clime_call_read_tags(struct clime_parse *p, struct clime_str text, bool last);

/* Parses more of the reply (after the reasoning): text and calls. */
void clime_calls_feed(struct clime_parse *p, struct clime_str text, bool last);

#endif
