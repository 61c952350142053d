/* Parser of header fields: name, value and Content-Length (RFC 9110, sections 5 and 8.6). Pure; any thread. */
#ifndef CLIME_COMMON_HTTP_FIELD_H
#define CLIME_COMMON_HTTP_FIELD_H

#include <stdint.h>

#include "common/str.h"

struct clime_http_field {
    struct clime_str name; /* a token; points into the line */
    char *value;           /* one line without control characters; the caller frees it */
};

/* False for a line that is no field, such as a continuation line. */
bool clime_http_field_read(struct clime_str line, struct clime_http_field *out);

/* Parses a Content-Length into *length, bytes; *length holds the value of an earlier one, -1 = none. False: no number,
 * or different from the earlier one, so the end of the answer is unknown. */
bool clime_http_field_length(const char *value, int64_t *length);

#endif
