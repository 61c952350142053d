/* Streaming regular expression search: bounded cost per byte, for any expression and text length.
 *
 *   search   the expression, compiled. Immutable; threads share it.
 *   hunt     the search of one text. One owner, one thread.
 *
 * Syntax as in grammars (regex.c): non-regular features are rejected by name.
 */
#ifndef CLIME_TEXT_GRAMMAR_SEARCH_H
#define CLIME_TEXT_GRAMMAR_SEARCH_H

#include "common/err.h"
#include "common/str.h"

struct clime_search;
struct clime_hunt;

/* CLIME_ERR_INPUT with the reason. */
enum clime_err clime_search_new(struct clime_str pattern, struct clime_search **out, struct clime_error *e);
void clime_search_free(struct clime_search *s); /* NULL is fine; afterwards its hunts can only be freed */

struct clime_hunt *clime_hunt_new(const struct clime_search *s); /* starts with an empty text */
void clime_hunt_free(struct clime_hunt *h);                      /* NULL is fine */

enum clime_found { CLIME_FOUND_NONE, CLIME_FOUND_ONE, CLIME_FOUND_TOO_MUCH };

/* Appends UTF-8 bytes. ONE: the text has a match if it ends here. TOO_MUCH: too ambiguous; this depends on the text
 * alone, and is permanent. */
enum clime_found clime_hunt_feed(struct clime_hunt *h, struct clime_str more);

#endif
