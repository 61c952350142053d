/* URL redaction and encoding (see url.h). Called wherever a URL is logged or made, any thread; owns nothing. */
#include "common/http/url.h"

#include <stdio.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)

/* Like libcurl: the user part ends at the last "@" of the authority, which ends at the first "/", "?" or "#". If an
 * unencoded password holds such a byte, no host follows, and the rest is hidden. */
struct clime_url_shown clime_url_shown(const char *url) {
    struct clime_url_shown out;
    const char *at = strstr(url, "://"), *start = at ? at + 3 : url;
    size_t n_scheme = (size_t)(start - url), n_host = strcspn(start, "/?#");
    const char *user = memrchr(start, '@', n_host);
    size_t n = strcspn(start, "?#");
    if (!user && memchr(start, ':', n_host) && strchr(start + n_host, '@')) { /* "user:pass/word@host" */
        const char *colon = memchr(start, ':', n_host);
        size_t n_port = strspn(colon + 1, "0123456789");
        if (start[0] != '[' && (n_port == 0 || colon + 1 + n_port != start + n_host)) n = 0;
    }
    if (user) {
        n -= (size_t)(user + 1 - start);
        start = user + 1;
    }
    snprintf(out.text, sizeof out.text, "%.*s%.*s", (int)n_scheme, url, (int)n, start);
    return out;
}

void clime_url_encode(struct clime_buf *out, struct clime_str s, const char *also) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c && (strchr("-._~", c) || strchr(also, c)));
        if (plain)
            clime_buf_addc(out, (char)c);
        else
            clime_buf_printf(out, "%%%02X", c);
    }
}

char *clime_url_with(const char *start, const char *value) {
    struct clime_buf out;
    clime_buf_init(&out, MOST_BYTES);
    clime_buf_adds(&out, start);
    clime_url_encode(&out, clime_str_of(value), "");
    return clime_buf_take(&out);
}
