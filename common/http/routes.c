/* Route tables: finds a request's row, and writes the table as JSON for --print-routes (called by a program's main). */
#include <stdio.h>
#include <string.h>

#include "common/http/server_int.h"
#include "common/json/write.h"

static bool method_allowed(const char *methods, struct clime_str method) {
    for (const char *at = methods; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        struct clime_str one = {at, strcspn(at, "|")};
        if (clime_str_eq(one, method) || (clime_str_is(one, "GET") && clime_str_is(method, "HEAD"))) return true;
    }
    return false;
}

static bool path_matches(const char *pattern, struct clime_str path, struct clime_str *param) {
    size_t fixed = strcspn(pattern, "{");
    *param = (struct clime_str){"", 0};
    if (!pattern[fixed]) return clime_str_is(path, pattern);
    const char *suffix = strchr(pattern + fixed, '}') + 1;
    size_t tail = strlen(suffix);
    if (path.len <= fixed + tail || memcmp(path.ptr, pattern, fixed) != 0 ||
        memcmp(path.ptr + path.len - tail, suffix, tail) != 0)
        return false;
    *param = (struct clime_str){path.ptr + fixed, path.len - fixed - tail};
    return !tail || !memchr(param->ptr, '/', param->len);
}

/* Exact paths take precedence over patterns. Several rows may share a path with different methods. */
bool clime_http_route_find(struct clime_http_request *rq) {
    char allow[128] = "Allow: ";
    size_t n = strlen(allow), start = n;
    for (int pass = 0; pass < 2 && n == start; pass++) {
        for (const struct clime_http_route *r = rq->server->o.routes; r->path; r++) {
            bool pattern = strchr(r->path, '{') != NULL;
            if (pattern != (pass == 1) || !path_matches(r->path, rq->path, &rq->param)) continue;
            if (method_allowed(r->methods, rq->method)) {
                rq->route = r;
                return true;
            }
            for (const char *m = r->methods; *m && n < sizeof allow - 8; m++) {
                if (m == r->methods && n > start) n += (size_t)snprintf(allow + n, sizeof allow - n, ", ");
                n += (size_t)snprintf(allow + n, sizeof allow - n, *m == '|' ? ", " : "%c", *m);
            }
        }
    }
    if (n == start) {
        char message[300];
        snprintf(message, sizeof message, "no such path: %.*s", (int)(rq->path.len < 200 ? rq->path.len : 200),
                 rq->path.ptr);
        return clime_http_refuse(rq, 404, message, NULL);
    }
    char message[160];
    snprintf(message, sizeof message, "this method is not allowed here; allowed: %s", allow + start);
    snprintf(allow + n, sizeof allow - n, "\r\n");
    return clime_http_refuse(rq, 405, message, allow);
}

void clime_http_routes_json(const struct clime_http_route *routes, struct clime_buf *out) {
    static const char *const auth[] = {
        [CLIME_HTTP_OPEN] = "open", [CLIME_HTTP_USER] = "user", [CLIME_HTTP_ADMIN] = "admin"};
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_array(&w);
    for (const struct clime_http_route *r = routes; r->path; r++) {
        clime_jw_object(&w);
        clime_jw_put_strz(&w, "path", r->path);
        clime_jw_key(&w, "methods");
        clime_jw_array(&w);
        for (const char *m = r->methods; *m;) {
            size_t n = strcspn(m, "|");
            clime_jw_str(&w, (struct clime_str){m, n});
            m += m[n] ? n + 1 : n;
        }
        clime_jw_close(&w);
        clime_jw_put_strz(&w, "auth", auth[r->auth]);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
}
