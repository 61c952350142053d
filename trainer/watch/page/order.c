/* POST /api/runs/{run}/order: orders for the page's run (control.h). On the server's threads.
 *
 * Only the run that serves the page takes orders, only with --page-control, and only with its key. The HTTP server
 * itself has no key, so its checks of Origin and Host (common/http/origin.c) apply to every route. */
#include <stdio.h>

#include "common/json/tree.h"
#include "common/page/assets.h"
#include "trainer/watch/page/page_int.h"

static enum clime_err take(struct clime_page *p, struct clime_http_request *rq, struct clime_error *e) {
    struct clime_str body = clime_http_body(rq);
    struct cJSON *tree;
    enum clime_err rc = clime_tree_parse(body.ptr, body.len, &tree, e);
    if (rc) return clime_error_prefix(e, "the body");
    const char *order = clime_tree_str(clime_tree_get(tree, "order"), "");
    rc = clime_page_control_order(p->control, order, e);
    clime_tree_free(tree);
    return rc;
}

void clime_page_order(struct clime_http_request *rq, void *page) {
    struct clime_page *p = page;
    struct clime_error e = {0};
    struct clime_buf text;
    struct clime_jw w;
    if (!p->control || !clime_str_is(clime_http_param(rq), "0")) {
        clime_http_reply_error(rq, 403,
                               "this page only reads: clime-train rl --page-control makes one that takes orders");
        return;
    }
    if (!clime_http_has_key(rq, clime_page_control_key(p->control))) {
        clime_http_reply_error(rq, 401, "an order needs the key: ports/page-key in the run's folder has it");
        return;
    }
    if (take(p, rq, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    clime_buf_init(&text, 4096);
    clime_jw_init(&w, &text);
    clime_jw_object(&w);
    clime_page_control_write(p->control, &w);
    clime_jw_close(&w);
    clime_http_reply(rq, 200, "application/json", clime_page_headers, clime_buf_str(&text));
    clime_buf_free(&text);
}
