/* Byte-wise check of a JSON object or array that is still being written (RFC 8259): for text that comes in pieces.
 *
 * Whereas scan.h needs the whole text, this keeps its place in a few bytes and looks at each byte once. It says when
 * the value is complete and at which byte it can no longer become one. It does not check UTF-8, nor pairs of surrogate
 * escapes: clime_json_check does, once the text is there.
 */
#ifndef CLIME_COMMON_JSON_WALK_H
#define CLIME_COMMON_JSON_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/json/scan.h"

enum clime_json_walked { CLIME_WALK_MORE, CLIME_WALK_DONE, CLIME_WALK_BAD };

struct clime_json_walk { /* zero = before the opening brace or bracket */
    uint8_t state;
    uint8_t depth;
    uint8_t digits;   /* of an escape, still to come */
    bool key;         /* the string is a key */
    const char *tail; /* of true, false, null: what must follow */
    uint64_t arrays;  /* bit d: the container at depth d + 1 is an array */
};

/* Takes the next byte. DONE: it closed the value. BAD: no JSON goes on like this; the byte is not taken. */
enum clime_json_walked clime_json_walk(struct clime_json_walk *w, char c);

/* Inside a string (its closing quote has not come). */
bool clime_json_walk_in_string(const struct clime_json_walk *w);
/* A key was read and its colon; the value has not begun. */
bool clime_json_walk_before_value(const struct clime_json_walk *w);

#endif
