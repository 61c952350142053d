/* A regular expression that is looked for in a text while it grows: a byte's cost has a limit, whatever the expression
 * and however long the text.
 *
 *   search   the expression, compiled. Immutable; threads share it.
 *   hunt     one text that is searched. One owner, one thread.
 *
 * The syntax is that of grammars (regex.c): what is not regular is refused by its name.
 */
#ifndef CLIME_TEXT_GRAMMAR_SEARCH_H
#define CLIME_TEXT_GRAMMAR_SEARCH_H

#include "common/err.h"
#include "common/str.h"

struct clime_search;
struct clime_hunt;

/* CLIME_ERR_INPUT with the reason. */
enum clime_err clime_search_new(struct clime_str pattern, struct clime_search **out, struct clime_error *e);
void clime_search_free(struct clime_search *s); /* NULL is fine; its hunts can only be freed then */

struct clime_hunt *clime_hunt_new(const struct clime_search *s); /* of an empty text */
void clime_hunt_free(struct clime_hunt *h);                      /* NULL is fine */

enum clime_found { CLIME_FOUND_NONE, CLIME_FOUND_ONE, CLIME_FOUND_TOO_MUCH };

/* Adds bytes, of UTF-8, to the text. ONE: it has a match, if it ends here. TOO_MUCH: there are too many ways to read
 * it; which text that happens with depends on the text alone, and from then on it stays so. */
enum clime_found clime_hunt_feed(struct clime_hunt *h, struct clime_str more);

#endif
