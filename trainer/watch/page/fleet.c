/* Current state of a run: what its ledger has in progress, and what its router and servers report. On the server's
 * threads.
 *
 * The programs are queried at most once a second for any number of viewers: one thread asks, the others return the last
 * answers, so hanging servers hold one thread for at most the total limit. The router is the run's own
 * (RUN/ports/router, with its key), or the one passed to rl. A run that is not training is not queried: its ports may
 * belong to another program by now. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/json/tree.h"
#include "trainer/ledger/browse/browse.h"
#include "trainer/watch/page/page_int.h"

#define KEEP_US 1000000
#define ASK_US 1500000 /* for one program's answer */
#define ALL_US 4000000 /* for all of them */
#define MAX_ANSWER ((size_t)4 << 20)

/* Reads the first line of RUN/ports/name; "" = none. */
static void read_line(const struct clime_page_run *r, const char *name, char *out, size_t size) {
    char *path = xasprintf("%s/ports/%s", r->dir, name);
    FILE *f = fopen(path, "r");
    out[0] = 0;
    if (f && fgets(out, (int)size, f)) out[strcspn(out, "\n")] = 0;
    if (f) fclose(f);
    free(path);
}

/* A set of parallel queries. */
struct round {
    struct clime_http_client *http;
    int64_t until_us;
};

static bool ask(const struct round *o, const char *url, struct clime_buf *reply, struct clime_error *e) {
    int64_t left = o->until_us - clime_now_us();
    if (left <= 0) {
        clime_fail(e, CLIME_ERR_TIMEOUT, "not asked: the others took too long");
        return false;
    }
    if (left > ASK_US) left = ASK_US;
    const struct clime_http_call call = {
        .method = "GET", .url = url, .connect_timeout_us = left, .timeout_us = left, .max_reply = MAX_ANSWER};
    struct clime_http_result got = {0};
    bool well = !clime_http_client_call(o->http, &call, &got, e);
    if (well && got.status != 200) {
        clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s answers %d", clime_url_shown(url).text, got.status);
        well = false;
    } else if (well && clime_json_check(got.reply.data ? got.reply.data : "", got.reply.len, e)) {
        *reply = got.reply;
        return true;
    } else if (well) {
        clime_error_prefix(e, "%s", clime_url_shown(url).text);
        well = false;
    }
    clime_buf_free(&got.reply);
    return well;
}

/* Writes a member with a program's answer (true), or null and the member "error". */
static bool write_answer(struct clime_jw *w, const char *key, const struct round *o, const char *url,
                         struct cJSON **tree) {
    struct clime_buf reply = {0};
    struct clime_error e = {0};
    clime_jw_key(w, key);
    bool well = ask(o, url, &reply, &e);
    if (well) {
        clime_jw_raw(w, clime_buf_str(&reply));
        if (tree && clime_tree_parse(reply.data, reply.len, tree, &e)) *tree = NULL;
    } else {
        clime_jw_null(w);
        clime_jw_put_strz(w, "error", e.msg);
    }
    clime_buf_free(&reply);
    return well;
}

static void write_servers(struct clime_jw *w, const struct round *o, const struct cJSON *workers) {
    char url[300];
    clime_jw_key(w, "servers");
    clime_jw_array(w);
    for (const struct cJSON *s = clime_tree_first(workers); s; s = clime_tree_next(s)) {
        const char *base = clime_tree_str(clime_tree_get(s, "url"), "");
        snprintf(url, sizeof url, "%s/v1/loads", base);
        clime_jw_object(w);
        clime_jw_put_strz(w, "url", base);
        bool well = write_answer(w, "loads", o, url, NULL);
        snprintf(url, sizeof url, "%s/get_weight_version", base);
        if (well) write_answer(w, "version", o, url, NULL);
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

static void ask_programs(struct clime_page *p, struct clime_page_run *r, struct clime_jw *w) {
    char port[32], key[256], url[300];
    bool given = r == p->runs && p->router_url[0];
    read_line(r, "router", port, sizeof port);
    read_line(r, "api-key", key, sizeof key);
    clime_jw_object(w);
    if (given || port[0]) {
        struct cJSON *tree = NULL;
        const struct round o = {clime_http_client_new(), clime_now_us() + ALL_US};
        const char *bearer = given ? p->router_key : key;
        if (bearer && bearer[0]) clime_http_client_bearer(o.http, bearer);
        if (given)
            snprintf(url, sizeof url, "%s/workers", p->router_url);
        else
            snprintf(url, sizeof url, "http://127.0.0.1:%s/workers", port);
        write_answer(w, "router", &o, url, &tree);
        write_servers(w, &o, clime_tree_get(tree, "workers"));
        clime_tree_free(tree);
        clime_http_client_free(o.http);
    }
    clime_jw_close(w);
}

/* Rebuilds r->fleet. One thread at a time. */
static void renew(struct clime_page *p, struct clime_page_run *r) {
    struct clime_buf said;
    struct clime_jw w;
    clime_buf_init(&said, CLIME_PAGE_MAX_REPLY);
    clime_jw_init(&w, &said);
    ask_programs(p, r, &w);
    pthread_mutex_lock(&r->fleet_lock);
    clime_buf_free(&r->fleet);
    r->fleet = said;
    r->fleet_us = clime_now_us();
    r->asking = false;
    pthread_mutex_unlock(&r->fleet_lock);
}

/* Writes the member "fleet". */
static void write_fleet(struct clime_page *p, struct clime_page_run *r, struct clime_jw *w) {
    pthread_mutex_lock(&r->fleet_lock);
    bool mine = !r->asking && (!r->fleet.data || clime_now_us() >= r->fleet_us + KEEP_US);
    if (mine) r->asking = true;
    pthread_mutex_unlock(&r->fleet_lock);
    if (mine) renew(p, r);
    pthread_mutex_lock(&r->fleet_lock);
    clime_jw_put_raw(w, "fleet", r->fleet.data ? clime_buf_str(&r->fleet) : clime_str_of("{}"));
    pthread_mutex_unlock(&r->fleet_lock);
}

static enum clime_err answer_now(struct clime_answer *a, struct clime_error *e) {
    int64_t pid;
    bool ended;
    clime_jw_object(&a->w);
    enum clime_err rc = clime_browse_process(a->db, &pid, &ended, e);
    if (!rc) rc = clime_browse_now(a->db, &a->w, e);
    const char *state = rc ? "" : clime_page_state(pid, ended);
    clime_jw_put_strz(&a->w, "state", state);
    clime_jw_put_int(&a->w, "now_us", clime_wall_us());
    if (!strcmp(state, "running")) write_fleet(a->page, &a->page->runs[a->run], &a->w);
    if (a->run == 0 && a->page->control) clime_page_control_write(a->page->control, &a->w);
    clime_jw_close(&a->w);
    return rc;
}

void clime_page_now(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_now);
}

static enum clime_err answer_times(struct clime_answer *a, struct clime_error *e) {
    int64_t from = 0;
    if (clime_page_int(a, "from", 0, INT64_MAX, &from, e)) return e->code;
    return clime_browse_times(a->db, from, &a->w, e);
}

void clime_page_times(struct clime_http_request *rq, void *page) {
    clime_page_answer(rq, page, answer_times);
}
