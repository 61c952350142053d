/* Defence against cross-site requests and DNS rebinding (see server.h). Called on the connection's worker thread.
 *
 * Any page can make its reader's browser POST to 127.0.0.1, as text/plain without a preflight. A page whose owner makes
 * its name resolve to 127.0.0.1 has the server's origin and can read answers. A key stops both. Without one, a request
 * with an Origin must come from an admitted page or ours, and on a loopback address the Host must be a name that no
 * outsider can point to it.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/http/server_int.h"

/* The host without its port; of "[::1]:80" the part in brackets. */
static struct clime_str name_of(const char *host) {
    if (host[0] == '[') return (struct clime_str){host + 1, strcspn(host + 1, "]")};
    return (struct clime_str){host, strcspn(host, ":")};
}

static bool same_name(struct clime_str a, const char *b) {
    return a.len == strlen(b) && strncasecmp(a.ptr, b, a.len) == 0;
}

/* Literal addresses do not resolve, and names without a dot resolve at most within the local network. */
static bool is_ours(const struct clime_http_server *s, const char *host) {
    struct clime_str name = name_of(host);
    char own[256] = "", text[64];
    struct in6_addr address;
    if (!memchr(name.ptr, '.', name.len) && !memchr(name.ptr, ':', name.len)) return true;
    if (name.len > 10 && strncasecmp(name.ptr + name.len - 10, ".localhost", 10) == 0) return true;
    if (gethostname(own, sizeof own - 1) == 0 && same_name(name, own)) return true;
    if (same_name(name, s->o.host)) return true;
    if (name.len >= sizeof text) return false;
    snprintf(text, sizeof text, CLIME_STR_FMT, CLIME_STR_ARG(name));
    return inet_pton(AF_INET, text, &address) == 1 || inet_pton(AF_INET6, text, &address) == 1;
}

bool clime_http_is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcasecmp(host, "localhost");
}

static bool is_own_page(const struct clime_http_server *s, const char *origin, const char *host) {
    const char *at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0 && is_ours(s, host);
}

static bool is_admitted(const struct clime_http_server *s, const char *origin) {
    for (int i = 0; i < s->o.n_cors_origins; i++)
        if (!strcmp(s->o.cors_origins[i], origin) || !strcmp(s->o.cors_origins[i], "*")) return true;
    return false;
}

bool clime_http_origin_check(struct clime_http_request *rq) {
    const struct clime_http_server *s = rq->server;
    const char *origin = clime_http_header(rq, "Origin"), *host = clime_http_header(rq, "Host");
    char message[400];
    rq->page = origin && is_admitted(s, origin) ? origin : NULL;
    if (s->api_key || s->admin_key) return true;
    if (origin && !rq->page && !is_own_page(s, origin, host)) {
        snprintf(message, sizeof message, "requests of the page %.200s are not taken (--cors-origin, or a key)",
                 origin);
        return clime_http_refuse(rq, 403, message, NULL);
    }
    if (host && clime_http_is_loopback(s->o.host) && !is_ours(s, host)) {
        snprintf(message, sizeof message, "%.200s is no name of this server; ask by its address, or give it a key",
                 host);
        return clime_http_refuse(rq, 403, message, NULL);
    }
    return true;
}

/* A page can send a GET with <img>, which has no Origin. Browsers name the source page in Sec-Fetch-Site ("none": typed
 * by the user), but only to https and loopback addresses. Elsewhere a browser is recognised by the start of its
 * User-Agent, which no page can change. */
bool clime_http_origin_check_command(struct clime_http_request *rq) {
    const struct clime_http_server *s = rq->server;
    const char *site = clime_http_header(rq, "Sec-Fetch-Site"), *agent = clime_http_header(rq, "User-Agent");
    bool by_get = clime_str_is(rq->method, "GET") || clime_str_is(rq->method, "HEAD");
    if (s->api_key || s->admin_key || !by_get || rq->page) return true;
    bool ours = site ? !strcmp(site, "same-origin") || !strcmp(site, "none") : !agent || strncmp(agent, "Mozilla/", 8);
    if (ours) return true;
    return clime_http_refuse(rq, 403, "without a key a browser's GET is no command: ask by POST, or set a key", NULL);
}

void clime_http_origin_headers(const struct clime_http_request *rq, struct clime_buf *out) {
    if (!rq->page) return;
    clime_buf_printf(out,
                     "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
                     "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n",
                     rq->page);
}

bool clime_http_preflight(struct clime_http_request *rq) {
    const char *asked = clime_http_header(rq, "Access-Control-Request-Headers");
    char extra[700];
    if (!rq->page || !clime_str_is(rq->method, "OPTIONS") || !clime_http_header(rq, "Access-Control-Request-Method"))
        return false;
    snprintf(extra, sizeof extra,
             "Access-Control-Allow-Methods: GET, POST, PUT, PATCH, DELETE\r\nAccess-Control-Allow-Headers: %.500s\r\n"
             "Access-Control-Max-Age: 600\r\n",
             asked ? asked : "authorization, content-type");
    clime_http_reply(rq, 204, NULL, extra, clime_str_of(""));
    return true;
}
