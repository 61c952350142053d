/* Typed query parameters. Called by handlers on HTTP workers; owns nothing. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/http/server.h"

enum clime_err clime_http_query_bool(const struct clime_http_request *rq, const char *name, bool *out,
                                     struct clime_error *e) {
    char text[16];
    bool given;
    if (clime_http_query(rq, name, text, sizeof text, &given, e)) return e->code;
    bool yes = !strcasecmp(text, "true") || !strcmp(text, "1"), no = !strcasecmp(text, "false") || !strcmp(text, "0");
    if (given && !yes && !no) return clime_fail(e, CLIME_ERR_INPUT, "%s must be true or false", name);
    if (given) *out = yes;
    return CLIME_OK;
}

enum clime_err clime_http_query_seconds(const struct clime_http_request *rq, const char *name, double max, double *out,
                                        struct clime_error *e) {
    char text[32], *end;
    bool given;
    if (clime_http_query(rq, name, text, sizeof text, &given, e)) return e->code;
    if (!given) return CLIME_OK;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0 && seconds <= max))
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be 0 to %g seconds", name, max);
    *out = seconds;
    return CLIME_OK;
}
