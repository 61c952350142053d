/* Routes about a whole run: its identity, state, options, curves and events. On the server's threads. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/page/assets.h"
#include "trainer/ledger/browse/browse.h"
#include "trainer/watch/page/page_int.h"

#define LINES_OF_A_PAGE 1500 /* of metrics: about a megabyte */

const char *clime_page_state(int64_t pid, bool ended) {
    char path[64], name[32] = "";
    if (ended) return "ended";
    if (pid <= 0 || (kill((pid_t)pid, 0) && errno == ESRCH)) return "stopped";
    snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", pid); /* another program may have the number now */
    FILE *f = fopen(path, "r");
    bool read = f && fgets(name, sizeof name, f);
    if (f) fclose(f);
    return read && strncmp(name, "clime-train", 11) ? "stopped" : "running";
}

static enum clime_err describe(struct clime_page *p, int i, struct clime_jw *w, struct clime_error *e) {
    struct clime_db *db;
    int64_t pid;
    bool ended;
    enum clime_err rc = clime_page_acquire(&p->runs[i], &db, e);
    if (rc) return rc;
    if (!(rc = clime_browse_process(db, &pid, &ended, e)) && !(rc = clime_browse_run(db, w, e)))
        clime_jw_put_strz(w, "state", clime_page_state(pid, ended));
    clime_page_release(&p->runs[i], db, rc == CLIME_OK);
    return rc;
}

/* Lists the runs; an unreadable one is listed with its error. */
void clime_page_list(struct clime_http_request *rq, void *page) {
    struct clime_page *p = page;
    struct clime_buf text;
    struct clime_jw w;
    clime_buf_init(&text, CLIME_PAGE_MAX_REPLY);
    clime_jw_init(&w, &text);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "now_us", clime_wall_us());
    clime_jw_key(&w, "runs");
    clime_jw_array(&w);
    for (int i = 0; i < p->n_runs; i++) {
        struct clime_error e = {0};
        clime_jw_object(&w);
        clime_jw_put_int(&w, "run", i);
        clime_jw_put_strz(&w, "dir", p->runs[i].dir);
        if (describe(p, i, &w, &e)) clime_jw_put_strz(&w, "error", e.msg);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_http_reply(rq, 200, "application/json", clime_page_headers, clime_buf_str(&text));
    clime_buf_free(&text);
}

static enum clime_err answer_options(struct clime_answer *a, struct clime_error *e) {
    return clime_browse_options(a->db, &a->w, e);
}

void clime_page_options_of(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_options);
}

static enum clime_err answer_metrics(struct clime_answer *a, struct clime_error *e) {
    int64_t from = 0;
    if (clime_page_int(a, "from", 0, INT64_MAX, &from, e)) return e->code;
    return clime_browse_metrics(a->db, from, LINES_OF_A_PAGE, &a->w, e);
}

void clime_page_metrics_of(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_metrics);
}

static enum clime_err answer_events(struct clime_answer *a, struct clime_error *e) {
    int64_t before = INT64_MAX, limit = 200;
    char kind[32] = "";
    if (clime_page_int(a, "before", 0, INT64_MAX, &before, e) || clime_page_int(a, "limit", 1, 1000, &limit, e))
        return e->code;
    if (clime_http_query(a->rq, "kind", kind, sizeof kind, NULL, e)) return e->code;
    return clime_browse_events(a->db, kind[0] ? kind : NULL, before, limit, &a->w, e);
}

void clime_page_events_of(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_events);
}
