/* A line of an answer's head: a field's name and value, and what its Content-Length says (RFC 9110, section 5 and 8.6).
 * Pure; any thread. */
#ifndef CLIME_COMMON_HTTP_FIELD_H
#define CLIME_COMMON_HTTP_FIELD_H

#include <stdint.h>

#include "common/str.h"

struct clime_http_field {
    struct clime_str name; /* a token; of the line */
    char *value;           /* one line without a control character: the caller's to free */
};

/* False for a line that is no field, such as one that goes on with the line before it. */
bool clime_http_field_read(struct clime_str line, struct clime_http_field *out);

/* The length that a Content-Length tells, in bytes; *length has what one before it told, -1 = there was none. False:
 * it is no number, or another one, and nobody can know where the answer ends. */
bool clime_http_field_length(const char *value, int64_t *length);

#endif
