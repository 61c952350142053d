/* Incremental check of a JSON object or array that arrives in pieces (RFC 8259).
 *
 * Unlike scan.h, which needs the whole text, this keeps a few bytes of state and reads each byte once. It reports when
 * the value is complete, and at which byte it can no longer become valid. It checks neither UTF-8 nor surrogate pairs:
 * clime_json_check does, on the complete text.
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
    uint8_t digits;   /* remaining digits of an escape */
    bool key;         /* the string is a key */
    const char *tail; /* the remaining letters of true, false or null */
    uint64_t arrays;  /* bit d: the container at depth d + 1 is an array */
};

/* Consumes the next byte. DONE: it closed the value. BAD: invalid here, and not consumed. */
enum clime_json_walked clime_json_walk(struct clime_json_walk *w, char c);

/* Inside a string, before its closing quote. */
bool clime_json_walk_in_string(const struct clime_json_walk *w);
/* After a key and its colon, before the value. */
bool clime_json_walk_before_value(const struct clime_json_walk *w);

#endif
