/* Visibility of workers' addresses (address.h). */
#include "router/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"

void clime_address_name(const struct clime_http_request *rq, int64_t id, const char *url, char out[CLIME_WORKER_URL]) {
    if (clime_http_may_command(rq))
        memmove(out, url, strlen(url) + 1);
    else
        snprintf(out, CLIME_WORKER_URL, "%lld", (long long)id);
}

void clime_address_write(const struct clime_http_request *rq, int64_t id, const char *url, struct clime_jw *w) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)id);
    clime_jw_put_strz(w, "id", text);
    if (clime_http_may_command(rq)) clime_jw_put_strz(w, "url", url);
}

char *clime_address_said(const struct clime_http_request *rq, const char *url, const char *error, bool of_call) {
    const char *at;
    if (!url[0] || clime_http_may_command(rq)) return xstrdup(error);
    if (of_call) return xstrdup("a worker did not answer as it should");
    char *said = xstrdup(error);
    while ((at = strstr(said, url))) {
        char *without = xasprintf("%.*sa worker%s", (int)(at - said), said, at + strlen(url));
        free(said);
        said = without;
    }
    return said;
}

void clime_address_hide(const struct clime_http_request *rq, struct clime_buf *body) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_jw w;
    struct clime_buf out;
    struct clime_str key, raw;
    if (clime_http_may_command(rq)) return;
    clime_arena_init(&arena, body->len + 1024);
    clime_buf_init(&out, body->len + 1024);
    clime_jw_init(&w, &out);
    clime_json_init(&j, body->data, body->len, &arena, &e);
    clime_jw_object(&w);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool address = clime_str_is(key, "host") || clime_str_is(key, "port");
        if (!clime_json_skip(&j, &raw) || address) continue;
        clime_jw_key_str(&w, key);
        clime_jw_raw(&w, raw);
    }
    clime_jw_close(&w);
    if (clime_json_end(&j)) {
        clime_buf_clear(body);
        clime_buf_add(body, out.data, out.len);
    }
    clime_buf_free(&out);
    clime_arena_free(&arena);
}
