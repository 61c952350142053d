/* URLs: redaction for logs, and encoding of values. Any thread. */
#ifndef CLIME_COMMON_HTTP_URL_H
#define CLIME_COMMON_HTTP_URL_H

#include "common/buf.h"

/* The URL without user, password, query and fragment, which may be secret. Every URL from an option, file or client is
 * logged, stored and sent in this form. Cut after 299 bytes. Use within one expression, as in printf("%s",
 * clime_url_shown(url).text). */
struct clime_url_shown {
    char text[300];
};
struct clime_url_shown clime_url_shown(const char *url);

/* Appends s, percent-encoding every byte but letters, digits, "-._~" and the bytes of `also`. */
void clime_url_encode(struct clime_buf *out, struct clime_str s, const char *also);
/* start (a URL or a path up to "name=") followed by the encoded value; the caller frees it. */
char *clime_url_with(const char *start, const char *value);

#endif
