/* Filter for the head of a worker's answer (head.h). Called by the relay on HTTP threads. */
#include "router/head.h"

#include <stdlib.h>
#include <strings.h>

#define VALUE_MOST ((size_t)4 << 10) /* bytes of a content type, and of Connection's names; more is too large */

/* Hop-by-hop fields, and fields that the router sets itself. */
static const char *const ours[] = {
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Alt-Svc",
    "Date",
    "Content-Length",
    "X-Request-Id",
    "Request-Id",
    "X-Clime-Stream",
};
static const char pages[] = "Access-Control-";

void clime_head_init(struct clime_head *h) {
    *h = (struct clime_head){0};
    clime_buf_init(&h->lines, CLIME_HEAD_MOST);
    clime_buf_init(&h->connected, VALUE_MOST);
}

void clime_head_clear(struct clime_head *h) {
    clime_buf_clear(&h->lines);
    clime_buf_clear(&h->connected);
    free(h->content_type);
    h->content_type = NULL;
}

void clime_head_free(struct clime_head *h) {
    clime_buf_free(&h->lines);
    clime_buf_free(&h->connected);
    free(h->content_type);
    h->content_type = NULL;
}

/* "close, X-Hop" as ",close,,X-Hop,". */
static void note_names(struct clime_head *h, const char *list) {
    for (const char *at = list; *(at += strspn(at, ", ")); at += strcspn(at, ", "))
        clime_buf_printf(&h->connected, ",%.*s,", (int)strcspn(at, ", "), at);
    if (h->connected.full) h->lines.full = true;
}

static bool is_connected(const struct clime_head *h, struct clime_str name) {
    const char *at = h->connected.data;
    for (; at && (at = strchr(at, ',')); at++)
        if (!strncasecmp(at + 1, name.ptr, name.len) && at[1 + name.len] == ',') return true;
    return false;
}

/* The path on this router for a Location on this worker: clients may not reach workers. */
static const char *place_here(const char *worker_url, const char *value) {
    size_t n = strlen(worker_url);
    if (strncmp(value, worker_url, n) || value[n] != '/' || value[n + 1] == '/') return value;
    return value + n;
}

void clime_head_add(struct clime_head *h, const char *worker_url, const char *name, const char *value) {
    if (!strcasecmp(name, "Connection")) note_names(h, value);
    if (!strncasecmp(name, pages, sizeof pages - 1)) return;
    for (size_t i = 0; i < CLIME_COUNT(ours); i++)
        if (!strcasecmp(name, ours[i])) return;
    if (!strcasecmp(name, "Location")) value = place_here(worker_url, value);
    if (strcasecmp(name, "Content-Type")) {
        clime_buf_printf(&h->lines, "%s: %s\r\n", name, value);
        return;
    }
    free(h->content_type);
    h->content_type = xstrdup(value);
    if (strlen(value) > VALUE_MOST) h->lines.full = true;
}

/* The name of the line at *at; moves *at past the line. */
static struct clime_str next_line(const struct clime_buf *lines, size_t *at, struct clime_str *name) {
    const char *from = lines->data + *at, *end = (const char *)memchr(from, '\n', lines->len - *at) + 1;
    *at += (size_t)(end - from);
    *name = (struct clime_str){from, strcspn(from, ":")};
    return (struct clime_str){from, (size_t)(end - from)};
}

bool clime_head_has(const struct clime_head *h, const char *name) {
    struct clime_str found;
    for (size_t at = 0; at < h->lines.len;) {
        next_line(&h->lines, &at, &found);
        if (found.len == strlen(name) && !strncasecmp(found.ptr, name, found.len)) return true;
    }
    return false;
}

const char *clime_head_lines(struct clime_head *h) {
    struct clime_str name;
    size_t kept = 0;
    for (size_t at = 0; at < h->lines.len;) {
        struct clime_str line = next_line(&h->lines, &at, &name);
        if (is_connected(h, name)) continue;
        memmove(h->lines.data + kept, line.ptr, line.len);
        kept += line.len;
    }
    if (kept < h->lines.len) h->lines.data[h->lines.len = kept] = '\0';
    return clime_buf_str(&h->lines).ptr;
}
