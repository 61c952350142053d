/* Lenient JSON values on top of the strict scanner: null keeps out's default, and whole numbers may have a point
 * ("16.0") or quotes.
 */
#ifndef CLIME_COMMON_JSON_LENIENT_H
#define CLIME_COMMON_JSON_LENIENT_H

#include "common/json/scan.h"

bool clime_lenient_int(struct clime_json *j, int64_t min, int64_t max, int64_t *out);
bool clime_lenient_double(struct clime_json *j, double min, double max, double *out);
bool clime_lenient_bool(struct clime_json *j, bool *out);
bool clime_lenient_string(struct clime_json *j, struct clime_str *out);
bool clime_lenient_raw(struct clime_json *j, struct clime_str *out); /* any value, as its text */

/* True for a value that requests nothing: null, false, "", [] or {}. Clients send every field that they know. */
bool clime_lenient_nothing(struct clime_str raw);

#endif
