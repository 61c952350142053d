/* Header fields (see field.h). Called by the HTTP client for each line of a head. */
#include "common/http/field.h"

#include <stdlib.h>

#include "common/err.h"

#define MOST_DIGITS 18 /* any such number fits an int64_t */

static bool is_token(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alphanumeric && (!c || !strchr("!#$%&'*+-.^_`|~", c))) return false;
    }
    return s.len > 0;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool clime_http_field_read(struct clime_str line, struct clime_http_field *out) {
    const char *colon = line.len ? memchr(line.ptr, ':', line.len) : NULL;
    if (!colon) return false;
    out->name = (struct clime_str){line.ptr, (size_t)(colon - line.ptr)};
    if (!is_token(out->name)) return false;
    const char *value = colon + 1, *end = line.ptr + line.len;
    while (value < end && is_space(*value)) value++;
    while (end > value && is_space(end[-1])) end--;
    out->value = xstrndup(value, (size_t)(end - value));
    for (char *c = out->value; *c; c++) /* RFC 9110, section 5.5: other parsers end a line at a lone CR */
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    return true;
}

bool clime_http_field_length(const char *value, int64_t *length) {
    size_t n = strspn(value, "0123456789");
    if (n == 0 || n > MOST_DIGITS || value[n]) return false;
    int64_t told = strtoll(value, NULL, 10);
    bool agrees = *length < 0 || *length == told;
    *length = told;
    return agrees;
}
