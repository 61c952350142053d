/* Answers of the page's API: the path's run, a connection to its ledger, and JSON or an error message. Called by every
 * API route on the server's threads; owns an answer while it is built. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/page/assets.h"
#include "trainer/watch/page/page_int.h"

#define ANSWER_US 10000000 /* query limit: the trainer's disk and cores are not for the page */

/* Finds the run that the request's path names. */
static enum clime_err find_run(struct clime_answer *a, struct clime_error *e) {
    struct clime_str s = clime_http_param(a->rq);
    int run = 0;
    bool is_number = s.len > 0 && s.len <= 3;
    for (size_t i = 0; i < s.len && is_number; i++) {
        is_number = s.ptr[i] >= '0' && s.ptr[i] <= '9';
        run = 10 * run + (s.ptr[i] - '0');
    }
    if (!is_number || run >= a->page->n_runs)
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "there is no run " CLIME_STR_FMT ": the page shows 0 to %d",
                          s.len < 20 ? (int)s.len : 20, s.ptr, a->page->n_runs - 1);
    a->run = run;
    return CLIME_OK;
}

void clime_page_answer(struct clime_http_request *rq, void *page, clime_answer_fn *fn) {
    struct clime_answer a = {.page = page, .rq = rq};
    struct clime_error e = {0};
    clime_buf_init(&a.text, CLIME_PAGE_MAX_REPLY);
    clime_jw_init(&a.w, &a.text);
    enum clime_err rc = find_run(&a, &e);
    struct clime_page_run *r = &a.page->runs[a.run];
    if (!rc && !(rc = clime_page_acquire(r, &a.db, &e))) {
        clime_db_deadline(a.db, clime_now_us() + ANSWER_US);
        rc = fn(&a, &e);
        clime_db_deadline(a.db, 0);
        clime_page_release(r, a.db, rc == CLIME_OK || rc == CLIME_ERR_INPUT || rc == CLIME_ERR_NOT_FOUND);
    }
    if (!rc && a.text.full) rc = clime_fail(&e, CLIME_ERR_LIMIT, "the answer is over %zu MiB", a.text.cap >> 20);
    if (rc)
        clime_http_reply_err(rq, &e);
    else
        clime_http_reply(rq, 200, "application/json", clime_page_headers, clime_buf_str(&a.text));
    clime_buf_free(&a.text);
}

enum clime_err clime_page_real(const struct clime_answer *a, const char *name, double *out, struct clime_error *e) {
    char text[64], *end;
    if (clime_http_query(a->rq, name, text, sizeof text, NULL, e)) return e->code;
    if (!text[0]) return CLIME_OK;
    double v = strtod(text, &end);
    if (*end || !isfinite(v)) return clime_fail(e, CLIME_ERR_INPUT, "%s: \"%s\" is no number", name, text);
    *out = v;
    return CLIME_OK;
}

enum clime_err clime_page_int(const struct clime_answer *a, const char *name, int64_t min, int64_t max, int64_t *out,
                              struct clime_error *e) {
    char text[64], *end;
    if (clime_http_query(a->rq, name, text, sizeof text, NULL, e)) return e->code;
    if (!text[0]) return CLIME_OK;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || errno || v < min || v > max)
        return clime_fail(e, CLIME_ERR_INPUT, "%s: \"%s\" is no number from %lld to %lld", name, text, (long long)min,
                          (long long)max);
    *out = v;
    return CLIME_OK;
}
