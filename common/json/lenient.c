/* Lenient reading of single values. Called by request parsers; owns nothing.
 *
 * Invariant: a value of another kind sets the scanner's error.
 */
#include "common/json/lenient.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_null(struct clime_json *j) {
    return clime_json_peek(j) == CLIME_JSON_NULL;
}

/* Some clients send whole numbers as strings. */
static bool read_whole(struct clime_json *j, double *v) {
    struct clime_str text;
    char z[24], *end;
    if (clime_json_peek(j) != CLIME_JSON_STRING) return clime_json_double(j, v);
    if (!clime_json_string(j, &text)) return false;
    if (text.len == 0 || text.len >= sizeof z) return clime_json_bad(j, "expected a number");
    memcpy(z, text.ptr, text.len);
    z[text.len] = '\0';
    *v = strtod(z, &end);
    return strspn(z, "-0123456789") == text.len && !*end ? true : clime_json_bad(j, "expected a number");
}

bool clime_lenient_int(struct clime_json *j, int64_t min, int64_t max, int64_t *out) {
    double v;
    if (is_null(j)) return clime_json_null(j);
    if (!read_whole(j, &v)) return false;
    if (v != floor(v)) return clime_json_bad(j, "an integer is wanted, not %g", v);
    if (v < (double)min || v > (double)max)
        return clime_json_bad(j, "%.15g is outside %lld..%lld", v, (long long)min, (long long)max);
    *out = (int64_t)v;
    return true;
}

bool clime_lenient_double(struct clime_json *j, double min, double max, double *out) {
    double v;
    if (is_null(j)) return clime_json_null(j);
    if (!clime_json_double(j, &v)) return false;
    if (v < min || v > max) return clime_json_bad(j, "%.15g is outside %g..%g", v, min, max);
    *out = v;
    return true;
}

bool clime_lenient_bool(struct clime_json *j, bool *out) {
    return is_null(j) ? clime_json_null(j) : clime_json_bool(j, out);
}

bool clime_lenient_string(struct clime_json *j, struct clime_str *out) {
    return is_null(j) ? clime_json_null(j) : clime_json_string(j, out);
}

bool clime_lenient_raw(struct clime_json *j, struct clime_str *out) {
    return is_null(j) ? clime_json_null(j) : clime_json_skip(j, out);
}

bool clime_lenient_nothing(struct clime_str raw) {
    static const char *const nothing[] = {"null", "false", "\"\"", "[]", "{}"};
    for (size_t i = 0; i < CLIME_COUNT(nothing); i++)
        if (clime_str_is(raw, nothing[i])) return true;
    return false;
}
