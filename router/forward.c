/* Request forwarding: path, query and headers. Called on HTTP threads; owns nothing.
 *
 * The HTTP server decodes the path, so it is encoded again here. Segments that could resolve to another endpoint ("..",
 * ".", empty) are refused: the router may use a key for workers that its own clients do not have. The query is passed
 * on unchanged except for bytes that are invalid in one. */
#include "router/forward.h"

#include <stdlib.h>

#include "common/buf.h"
#include "common/http/url.h"

#define URL_CAP ((size_t)256 << 10) /* heads are shorter, even at three bytes for each */

static bool segment_is_sane(struct clime_str s) {
    return s.len > 0 && !clime_str_is(s, ".") && !clime_str_is(s, "..");
}

static bool put_path(struct clime_buf *out, struct clime_str path) {
    if (path.len > 1 && path.ptr[path.len - 1] == '/') path.len--;
    for (size_t at = 0; at < path.len;) {
        const char *slash = memchr(path.ptr + at + 1, '/', path.len - at - 1);
        struct clime_str segment = {path.ptr + at + 1, (slash ? (size_t)(slash - path.ptr) : path.len) - at - 1};
        if (path.ptr[at] != '/' || !segment_is_sane(segment)) return false;
        clime_buf_addc(out, '/');
        clime_url_encode(out, segment, "");
        at += segment.len + 1;
    }
    return path.len > 0;
}

enum clime_err clime_forward_target(struct clime_str path, struct clime_str query, char **out, struct clime_error *e) {
    struct clime_buf b;
    clime_buf_init(&b, URL_CAP);
    *out = NULL;
    if (!put_path(&b, path)) {
        clime_buf_free(&b);
        return clime_fail(e, CLIME_ERR_INPUT, "the path has empty segments, or \".\" or \"..\" in it");
    }
    if (query.len) clime_buf_addc(&b, '?');
    clime_url_encode(&b, query, "%!$&'()*+,;=:@/?");
    if (b.full) {
        clime_buf_free(&b);
        return clime_fail(e, CLIME_ERR_LIMIT, "the path and query are too long");
    }
    *out = clime_buf_take(&b);
    return CLIME_OK;
}

char *clime_forward_method(const struct clime_http_request *rq) {
    struct clime_str method = clime_http_method(rq);
    if (clime_str_is(method, "HEAD")) return xstrdup("GET");
    return xstrndup(method.ptr, method.len);
}

const char *clime_forward_key(const struct clime_router *r, const char *own, bool named,
                              const struct clime_http_request *rq) {
    const char *key = clime_router_key_for(r, own);
    if (!key && r->anyone_adds && !named) return "";
    if (key || !clime_http_key_is_named(rq)) return key;
    return r->api_key ? r->api_key : "";
}

const char clime_forward_returned[] = "the request has been here before: a worker's URL leads back to this router";

bool clime_forward_returns(const struct clime_router *r, const struct clime_http_request *rq) {
    int at = 0;
    for (const char *via; (via = clime_http_header_next(rq, "Via", &at));)
        if (strstr(via, r->instance)) return true;
    return false;
}

void clime_forward_headers(const struct clime_router *r, const char *worker_key, struct clime_http_request *rq,
                           struct clime_headers *out) {
    static const struct {
        const char *name;
        bool is_key;
    } passed[] = {{"X-Session-ID", false}, {"X-SMG-Routing-Key", false}, {"X-Correlation-ID", false},
                  {"traceparent", false},  {"tracestate", false},        {"Authorization", true},
                  {"X-Api-Key", true}};
    int n = 0, at = 0;
    char *so_far = xstrdup(""); /* several lines joined */
    for (const char *via; (via = clime_http_header_next(rq, "Via", &at));) {
        char *longer = xasprintf("%s%s, ", so_far, via);
        free(so_far);
        so_far = longer;
    }
    out->lines[n++] = xasprintf("Via: %s1.1 %s", so_far, r->instance);
    free(so_far);
    for (size_t i = 0; i < CLIME_COUNT(passed); i++) {
        const char *value = clime_http_header(rq, passed[i].name);
        if (value && !(passed[i].is_key && worker_key)) out->lines[n++] = xasprintf("%s: %s", passed[i].name, value);
    }
    out->lines[n++] =
        xasprintf("X-Request-ID: %s", clime_http_request_id(rq)); /* the client's, or the one returned to it */
    out->lines[n++] = xstrdup("Accept-Encoding: identity");       /* events in a compressed body cannot be parsed */
    out->lines[n] = NULL;
    CHECK(n <= CLIME_PASSED_HEADERS);
}

void clime_forward_headers_free(struct clime_headers *h) {
    for (char **line = h->lines; *line; line++) free(*line);
}
