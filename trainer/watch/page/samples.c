/* Routes about samples: filtered lists, a group, one sample, its tokens; answers of several versions to one prompt. On
 * the server's threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/ledger/browse/browse.h"
#include "trainer/ledger/browse/samples.h"
#include "trainer/watch/page/page_int.h"

#define SEARCH_US 100000 /* time limit of a list, which then returns what it found */
#define FIRST_US 20000   /* limit of the first page if it found something, for a quick display */
#define MAX_LIST 500

static enum clime_err read_order(const struct clime_answer *a, enum clime_browse_order *out, struct clime_error *e) {
    char text[32] = "";
    if (clime_http_query(a->rq, "order", text, sizeof text, NULL, e)) return e->code;
    if (!text[0]) return CLIME_OK;
    for (int i = 0; clime_browse_order_names[i]; i++)
        if (!strcmp(text, clime_browse_order_names[i])) {
            *out = (enum clime_browse_order)i;
            return CLIME_OK;
        }
    return clime_fail(e, CLIME_ERR_INPUT, "order: \"%s\" is none of newest, oldest, best, worst, longest, shortest",
                      text);
}

static enum clime_err answer_list(struct clime_answer *a, struct clime_error *e) {
    char status[32] = "", text[256] = "";
    struct clime_browse_filter f = {.rollout = -1,
                                    .group = -1,
                                    .step = -1,
                                    .reward_min = NAN,
                                    .reward_max = NAN,
                                    .length_max = INT64_MAX,
                                    .last_id = -1,
                                    .limit = 50,
                                    .until_us = clime_now_us() + SEARCH_US,
                                    .soon_us = clime_now_us() + FIRST_US};
    if (read_order(a, &f.order, e) || clime_page_int(a, "rollout", 0, INT64_MAX, &f.rollout, e) ||
        clime_page_int(a, "group", 0, INT64_MAX, &f.group, e) || clime_page_int(a, "step", 0, INT64_MAX, &f.step, e) ||
        clime_page_real(a, "reward_min", &f.reward_min, e) || clime_page_real(a, "reward_max", &f.reward_max, e) ||
        clime_page_int(a, "length_min", 0, INT64_MAX, &f.length_min, e) ||
        clime_page_int(a, "length_max", 0, INT64_MAX, &f.length_max, e) ||
        clime_page_int(a, "limit", 1, MAX_LIST, &f.limit, e) ||
        clime_page_int(a, "after", 0, INT64_MAX, &f.last_id, e) ||
        clime_page_real(a, "after_value", &f.last_value, e) ||
        clime_http_query(a->rq, "status", status, sizeof status, NULL, e) ||
        clime_http_query(a->rq, "text", text, sizeof text, NULL, e))
        return e->code;
    f.goes_on = f.last_id >= 0;
    if (f.goes_on) f.soon_us = f.until_us;
    if (status[0]) f.status = status;
    if (text[0]) f.text = text;
    return clime_browse_samples(a->db, &f, &a->w, e);
}

void clime_page_samples(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_list);
}

static enum clime_err needs_id(const struct clime_answer *a, const char *name, int64_t *id, struct clime_error *e) {
    *id = -1;
    if (clime_page_int(a, name, 0, INT64_MAX, id, e)) return e->code;
    return *id < 0 ? clime_fail(e, CLIME_ERR_INPUT, "%s is missing", name) : CLIME_OK;
}

static enum clime_err answer_group(struct clime_answer *a, struct clime_error *e) {
    int64_t id;
    if (needs_id(a, "id", &id, e)) return e->code;
    return clime_browse_group(a->db, id, &a->w, e);
}

void clime_page_group(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_group);
}

/* Writes the text each token adds, in order. A token that ends inside a character adds nothing; the one that completes
 * it adds all of it. */
static void write_pieces(struct clime_jw *w, const struct clime_tokenizer *t, const int32_t *ids, size_t n) {
    struct clime_detok d;
    struct clime_buf piece;
    clime_detok_init(&d, t, false);
    clime_buf_init(&piece, 1 << 20);
    clime_jw_key(w, "pieces");
    clime_jw_array(w);
    for (size_t i = 0; i < n; i++) {
        clime_buf_clear(&piece);
        clime_detok_feed(&d, ids[i], &piece);
        if (i + 1 == n) clime_detok_finish(&d, &piece);
        clime_jw_str(w, clime_buf_str(&piece));
    }
    clime_jw_close(w);
    clime_detok_free(&d);
    clime_buf_free(&piece);
}

static enum clime_err answer_sample(struct clime_answer *a, struct clime_error *e) {
    int64_t id;
    int32_t *ids = NULL;
    size_t n = 0;
    if (needs_id(a, "id", &id, e)) return e->code;
    clime_jw_object(&a->w);
    enum clime_err rc = clime_browse_sample(a->db, id, &a->w, e);
    if (!rc) rc = clime_browse_streams(a->db, id, &a->w, &ids, &n, e);
    const struct clime_tokenizer *t = rc ? NULL : clime_page_tokenizer(a->page, a->run);
    if (t && n) write_pieces(&a->w, t, ids, n);
    clime_jw_close(&a->w);
    free(ids);
    return rc;
}

void clime_page_sample(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_sample);
}

static enum clime_err answer_prompts(struct clime_answer *a, struct clime_error *e) {
    int64_t after = 0, limit = 200;
    if (clime_page_int(a, "after", 0, INT64_MAX, &after, e) || clime_page_int(a, "limit", 1, 1000, &limit, e))
        return e->code;
    return clime_browse_repeated(a->db, after, limit, &a->w, e);
}

void clime_page_prompts(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_prompts);
}

static enum clime_err answer_answers(struct clime_answer *a, struct clime_error *e) {
    int64_t line;
    char set[256] = "";
    if (needs_id(a, "line", &line, e)) return e->code;
    if (clime_http_query(a->rq, "set", set, sizeof set, NULL, e)) return e->code;
    int32_t *ids = NULL;
    size_t n = 0;
    clime_jw_object(&a->w);
    enum clime_err rc = clime_browse_answers(a->db, set[0] ? set : NULL, line, &a->w, &ids, &n, e);
    const struct clime_tokenizer *t = rc || !n ? NULL : clime_page_tokenizer(a->page, a->run);
    if (t) {
        struct clime_buf prompt;
        clime_buf_init(&prompt, CLIME_PAGE_MAX_REPLY);
        clime_tokenizer_decode(t, ids, n, false, &prompt);
        clime_jw_put_str(&a->w, "prompt", clime_buf_str(&prompt));
        clime_buf_free(&prompt);
    }
    clime_jw_close(&a->w);
    free(ids);
    return rc;
}

void clime_page_answers(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_answers);
}
