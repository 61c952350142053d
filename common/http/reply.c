/* Answers of the HTTP server (see server.h): heads, whole replies, error bodies.
 *
 * Called by handlers on their worker thread, and by the server for refusals. A short answer is sent with one call, head
 * and body together.
 */
#include <stdio.h>
#include <time.h>

#include "common/clock.h"
#include "common/http/server_int.h"
#include "common/http/sse.h"
#include "common/json/write.h"

#define JOIN_BYTES 65536 /* bodies up to this are copied after their head */

static const struct {
    int status;
    const char *text, *type; /* type: in the error body */
    const char *kind;        /* type in Anthropic's terms; NULL: that of 400, or of 500 from 500 on */
} statuses[] = {
    {200, "OK", "", NULL},
    {201, "Created", "", NULL},
    {202, "Accepted", "", NULL},
    {204, "No Content", "", NULL},
    {400, "Bad Request", "BadRequestError", "invalid_request_error"},
    {401, "Unauthorized", "AuthenticationError", "authentication_error"},
    {403, "Forbidden", "PermissionDeniedError", "permission_error"},
    {404, "Not Found", "NotFoundError", "not_found_error"},
    {405, "Method Not Allowed", "MethodNotAllowedError", NULL},
    {408, "Request Timeout", "TimeoutError", NULL},
    {409, "Conflict", "ConflictError", NULL},
    {411, "Length Required", "BadRequestError", NULL},
    {413, "Content Too Large", "RequestTooLargeError", "request_too_large"},
    {415, "Unsupported Media Type", "BadRequestError", NULL},
    {417, "Expectation Failed", "BadRequestError", NULL},
    {422, "Unprocessable Content", "UnprocessableEntityError", NULL},
    {429, "Too Many Requests", "RateLimitError", "rate_limit_error"},
    {431, "Request Header Fields Too Large", "BadRequestError", NULL},
    {499, "Client Closed Request", "AbortedError", NULL},
    {500, "Internal Server Error", "InternalServerError", "api_error"},
    {501, "Not Implemented", "NotImplementedError", NULL},
    {502, "Bad Gateway", "BadGatewayError", NULL},
    {503, "Service Unavailable", "ServiceUnavailableError", "overloaded_error"},
    {504, "Gateway Timeout", "TimeoutError", "timeout_error"},
    {505, "HTTP Version Not Supported", "BadRequestError", NULL},
};

static size_t status_row(int status) {
    size_t internal = 0;
    for (size_t i = 0; i < CLIME_COUNT(statuses); i++) {
        if (statuses[i].status == status) return i;
        if (statuses[i].status == 500) internal = i;
    }
    return internal;
}

/* Anthropic's endpoints, a session's too, use its error types; the other members stay. */
static bool in_anthropics_terms(const struct clime_http_request *rq) {
    return clime_str_ends(rq->path, "/v1/messages") || clime_str_ends(rq->path, "/v1/messages/count_tokens");
}

/* Closes the connection after the answer, and says so, when much or an unknown amount of the body is unread. */
static void settle_connection(struct clime_http_request *rq) {
    bool more = rq->body_length < 0 || rq->body_length - (int64_t)rq->body_read > CLIME_HTTP_DISCARD_KEEP;
    if (!rq->body_ended && (more || rq->expects_continue)) rq->keep_alive = false;
    /* An idle connection holds a thread: close it when few are free. */
    const struct clime_http_server *s = rq->server;
    if (clime_http_connections_count(s->connections) > clime_http_slots(s->o.n_threads)) rq->keep_alive = false;
}

void clime_http_head(struct clime_http_request *rq, struct clime_buf *out, int status, const char *content_type,
                     const char *extra_headers, int64_t length, bool chunked) {
    clime_http_waits(rq); /* the peer may be slow to read */
    settle_connection(rq);
    size_t row = status_row(status);
    char date[40];
    time_t now = clime_wall_us() / 1000000;
    struct tm t;
    gmtime_r(&now, &t);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &t);
    clime_buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status,
                     statuses[row].status == status ? statuses[row].text : "", date);
    if (content_type) clime_buf_printf(out, "Content-Type: %s\r\n", content_type);
    if (length >= 0) clime_buf_printf(out, "Content-Length: %lld\r\n", (long long)length);
    if (chunked) clime_buf_adds(out, "Transfer-Encoding: chunked\r\n");
    if (!rq->keep_alive)
        clime_buf_adds(out, "Connection: close\r\n");
    else if (rq->http10)
        clime_buf_adds(out, "Connection: keep-alive\r\n");
    if (rq->id[0]) clime_buf_printf(out, "X-Request-Id: %s\r\n", rq->id);
    if (rq->id[0] && in_anthropics_terms(rq)) clime_buf_printf(out, "Request-Id: %s\r\n", rq->id);
    clime_http_origin_headers(rq, out);
    if (extra_headers) clime_buf_adds(out, extra_headers);
    rq->answered = true;
    rq->status = status;
}

void clime_http_reply(struct clime_http_request *rq, int status, const char *content_type, const char *extra_headers,
                      struct clime_str body) {
    CHECK(!rq->answered);
    bool bare = status == 204; /* RFC 9110, section 8.6: no length either */
    struct clime_buf head;
    clime_buf_init(&head, JOIN_BYTES + 65536);
    clime_http_head(rq, &head, status, bare ? NULL : content_type, extra_headers, bare ? -1 : (int64_t)body.len, false);
    clime_buf_adds(&head, "\r\n");
    bool send_body = !rq->head_only && !bare && body.len > 0;
    bool joined = send_body && body.len <= JOIN_BYTES;
    if (joined) clime_buf_add(&head, body.ptr, body.len);
    CHECK(!head.full);
    if (clime_http_send(rq, head.data, head.len) && send_body && !joined) clime_http_send(rq, body.ptr, body.len);
    clime_buf_free(&head);
}

void clime_http_reply_json(struct clime_http_request *rq, int status, struct clime_str body) {
    clime_http_reply(rq, status, "application/json", NULL, body);
}

static const char *kind_of(int status) {
    const char *kind = statuses[status_row(status)].kind;
    return kind ? kind : statuses[status_row(status < 500 ? 400 : 500)].kind;
}

/* type: of the error; name: OpenAI's code in place of the status; NULL = none */
static void put_error_members(struct clime_jw *w, int status, const char *type, const char *name, const char *message) {
    clime_jw_put_strz(w, "object", "error");
    clime_jw_put_strz(w, "message", message);
    clime_jw_put_strz(w, "type", type);
    clime_jw_key(w, "param");
    clime_jw_null(w);
    clime_jw_key(w, "code");
    if (name)
        clime_jw_strz(w, name);
    else
        clime_jw_int(w, status);
}

static void put_error(struct clime_jw *w, int status, const char *type, const char *name, const char *message) {
    clime_jw_key(w, "error");
    clime_jw_object(w);
    put_error_members(w, status, type, name, message);
    clime_jw_close(w);
}

void clime_http_error_member(struct clime_jw *w, int status, const char *message) {
    put_error(w, status, statuses[status_row(status)].type, NULL, message);
}

void clime_http_error_events(const struct clime_http_request *rq, int status, const char *message,
                             struct clime_buf *sse) {
    bool anthropic = in_anthropics_terms(rq);
    struct clime_buf event;
    struct clime_jw w;
    clime_buf_init(&event, 65536);
    clime_jw_init(&w, &event);
    clime_jw_object(&w);
    if (anthropic) clime_jw_put_strz(&w, "type", "error");
    put_error(&w, status, anthropic ? kind_of(status) : statuses[status_row(status)].type, NULL, message);
    clime_jw_close(&w);
    if (anthropic) {
        clime_sse_frame_named(sse, "error", clime_buf_str(&event)); /* its clients ignore events without a name */
    } else {
        clime_sse_frame(sse, clime_buf_str(&event));
        clime_sse_frame(sse, clime_str_of("[DONE]"));
    }
    clime_buf_free(&event);
}

static void reply_error(struct clime_http_request *rq, int status, const char *name, const char *message,
                        const char *extra_headers) {
    bool anthropic = in_anthropics_terms(rq);
    const char *type = statuses[status_row(status)].type;
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 1 << 20);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    put_error_members(&w, status, anthropic ? "error" : type, NULL, message);
    put_error(&w, status, anthropic ? kind_of(status) : type, name, message);
    if (anthropic) clime_jw_put_strz(&w, "request_id", rq->id);
    clime_jw_close(&w);
    clime_http_reply(rq, status, "application/json", extra_headers, clime_buf_str(&body));
    clime_buf_free(&body);
}

bool clime_http_refuse(struct clime_http_request *rq, int status, const char *message, const char *extra_headers) {
    reply_error(rq, status, NULL, message, extra_headers);
    return false;
}

void clime_http_reply_error(struct clime_http_request *rq, int status, const char *message) {
    bool later = status == 429 || status == 503;
    clime_http_refuse(rq, status, message, later ? "Retry-After: 1\r\n" : NULL);
}

void clime_http_reply_err(struct clime_http_request *rq, const struct clime_error *e) {
    if (e->code == CLIME_ERR_TOO_LONG) { /* clients truncate the conversation when they read this */
        struct clime_error told = *e;
        if (in_anthropics_terms(rq)) clime_error_prefix(&told, "prompt is too long");
        reply_error(rq, 400, "context_length_exceeded", told.msg, NULL);
        return;
    }
    clime_http_reply_error(rq, clime_http_status_of(e->code), e->msg);
}

int clime_http_status_of(enum clime_err code) {
    switch (code) {
    case CLIME_OK:
        return 200;
    case CLIME_ERR_INPUT:
    case CLIME_ERR_TOO_LONG:
        return 400;
    case CLIME_ERR_NOT_FOUND:
        return 404;
    case CLIME_ERR_LIMIT:
        return 413;
    case CLIME_ERR_BUSY:
        return 429;
    case CLIME_ERR_UNAVAILABLE:
        return 503;
    case CLIME_ERR_TIMEOUT:
        return 504;
    case CLIME_ERR_IO:
        return 500;
    case CLIME_ERR_DEVICE:
        return 503;
    case CLIME_ERR_ABORTED:
        return 499;
    case CLIME_ERR_INTERNAL:
        return 500;
    }
    return 500;
}
