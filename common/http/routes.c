/* A route table as JSON. Called by a program's main for --print-routes. */
#include <string.h>

#include "common/http/server.h"
#include "common/json/write.h"

void clime_http_routes_json(const struct clime_http_route *routes, struct clime_buf *out) {
    static const char *const auth[] = {
        [CLIME_HTTP_OPEN] = "open", [CLIME_HTTP_USER] = "user", [CLIME_HTTP_ADMIN] = "admin"};
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_array(&w);
    for (const struct clime_http_route *r = routes; r->path; r++) {
        clime_jw_object(&w);
        clime_jw_key(&w, "path");
        clime_jw_strz(&w, r->path);
        clime_jw_key(&w, "methods");
        clime_jw_array(&w);
        for (const char *m = r->methods; *m;) {
            size_t n = strcspn(m, "|");
            clime_jw_str(&w, (struct clime_str){m, n});
            m += m[n] ? n + 1 : n;
        }
        clime_jw_close(&w);
        clime_jw_key(&w, "auth");
        clime_jw_strz(&w, auth[r->auth]);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
}
