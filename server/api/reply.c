/* Small replies that several handlers send. HTTP workers. */
#include "server/server.h"

#include "common/http/sse.h"

void clime_reply_buf(struct clime_http_request *rq, int status, struct clime_buf *body) {
    if (body->full)
        clime_http_reply_error(rq, 500, "the reply is too large");
    else
        clime_http_reply_json(rq, status, clime_buf_str(body));
    clime_buf_free(body);
}

void clime_reply_event(struct clime_buf *sse, const struct clime_buf *event) {
    if (event->full)
        sse->full = true;
    else
        clime_sse_frame(sse, clime_buf_str(event));
}

void clime_reply_success(struct clime_http_request *rq, enum clime_err err, const char *message) {
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 8192);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_put_bool(&w, "success", !err);
    clime_jw_put_strz(&w, "message", message);
    clime_jw_close(&w);
    clime_reply_buf(rq, err ? clime_http_status_of(err) : 200, &body);
}
