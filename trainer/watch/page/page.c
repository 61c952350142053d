/* Opens and closes the page: its runs, server and port. Called by clime-train page, and by clime-train rl for its own
 * run. Main thread; owns the runs' connections.
 *
 * Invariant: an unreadable ledger is reported here, before anything is served. */
#include "trainer/watch/page/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/http/port.h"
#include "common/os/atomic_file.h"
#include "trainer/watch/page/page_int.h"

#define N_THREADS 32 /* a browser keeps up to 6 connections; several people may watch a run */

const struct clime_http_route clime_page_routes[] = {
    {"GET", "/", CLIME_HTTP_OPEN, clime_page_index},
    {"GET", "/assets/{name}", CLIME_HTTP_OPEN, clime_page_asset},
    {"GET", "/openapi.json", CLIME_HTTP_OPEN, clime_page_openapi},
    {"GET", "/metrics", CLIME_HTTP_OPEN, clime_page_prometheus},
    {"GET", "/api/runs", CLIME_HTTP_OPEN, clime_page_list},
    {"GET", "/api/runs/{run}/options", CLIME_HTTP_OPEN, clime_page_options_of},
    {"GET", "/api/runs/{run}/metrics", CLIME_HTTP_OPEN, clime_page_metrics_of},
    {"GET", "/api/runs/{run}/events", CLIME_HTTP_OPEN, clime_page_events_of},
    {"GET", "/api/runs/{run}/times", CLIME_HTTP_OPEN, clime_page_times},
    {"GET", "/api/runs/{run}/now", CLIME_HTTP_OPEN, clime_page_now},
    {"GET", "/api/runs/{run}/samples", CLIME_HTTP_OPEN, clime_page_samples},
    {"GET", "/api/runs/{run}/group", CLIME_HTTP_OPEN, clime_page_group},
    {"GET", "/api/runs/{run}/sample", CLIME_HTTP_OPEN, clime_page_sample},
    {"GET", "/api/runs/{run}/prompts", CLIME_HTTP_OPEN, clime_page_prompts},
    {"GET", "/api/runs/{run}/answers", CLIME_HTTP_OPEN, clime_page_answers},
    {"POST", "/api/runs/{run}/order", CLIME_HTTP_OPEN, clime_page_order},
    {NULL},
};

/* Opens the ledger once, so errors show now. */
static enum clime_err open_run(struct clime_page_run *r, const char *dir, struct clime_error *e) {
    struct clime_db *db;
    r->dir = xstrdup(dir);
    r->ledger = xasprintf("%s/ledger.db", dir);
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->fleet_lock, NULL);
    clime_buf_init(&r->fleet, CLIME_PAGE_MAX_REPLY);
    enum clime_err rc = clime_page_acquire(r, &db, e);
    if (!rc) clime_page_release(r, db, true);
    return rc;
}

static int port_of_earlier_start(const char *path) {
    char text[16] = "";
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return 0;
    bool read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    long port = read ? strtol(text, NULL, 10) : 0;
    return port > 0 && port < 65536 ? (int)port : 0;
}

static enum clime_err serve(struct clime_page *p, const struct clime_page_options *o, struct clime_error *e) {
    struct clime_http_options http = {.host = p->host,
                                      .port = o->port,
                                      .n_threads = N_THREADS,
                                      .max_body = 1 << 16,
                                      .routes = clime_page_routes,
                                      .context = p};
    struct clime_error taken;
    enum clime_err rc = CLIME_OK;
    if (o->port == 0 && (http.port = port_of_earlier_start(o->port_file)) &&
        (clime_http_port_check("page-port", "page-host", p->host, http.port, &taken) ||
         clime_http_server_start(&http, &p->http, &taken)))
        http.port = 0; /* another program has it now */
    if (!p->http) rc = clime_http_server_start(&http, &p->http, e);
    if (rc || !o->port_file) return rc;
    char text[16];
    int n = snprintf(text, sizeof text, "%d\n", clime_page_port(p));
    return clime_atomic_save(o->port_file, text, (size_t)n, e);
}

enum clime_err clime_page_open(const struct clime_page_options *o, struct clime_page **out, struct clime_error *e) {
    struct clime_page *p = xcalloc(1, sizeof *p);
    enum clime_err rc = CLIME_OK;
    *out = NULL;
    p->tokenizer = o->tokenizer;
    p->tokenizer_dir = o->tokenizer_dir;
    p->router_url = o->router_url ? o->router_url : "";
    p->router_key = o->router_key;
    p->control = o->control;
    snprintf(p->host, sizeof p->host, "%s", o->host);
    p->runs = xcalloc((size_t)o->n_runs, sizeof *p->runs);
    while (p->n_runs < o->n_runs && !rc) {
        rc = open_run(&p->runs[p->n_runs], o->runs[p->n_runs], e);
        p->n_runs++;
    }
    if (!rc) rc = serve(p, o, e);
    if (rc)
        clime_page_close(p);
    else
        *out = p;
    return rc;
}

int clime_page_port(const struct clime_page *p) {
    return clime_http_server_port(p->http);
}

void clime_page_url(const struct clime_page *p, char *out, size_t size) {
    bool all = !strcmp(p->host, "0.0.0.0") || !strcmp(p->host, "::");
    const char *host = all ? "127.0.0.1" : p->host;
    snprintf(out, size, strchr(host, ':') ? "http://[%s]:%d/" : "http://%s:%d/", host, clime_page_port(p));
}

void clime_page_close(struct clime_page *p) {
    if (!p) return;
    clime_http_server_stop(p->http);
    for (int i = 0; i < p->n_runs; i++) {
        struct clime_page_run *r = &p->runs[i];
        for (int k = 0; k < r->n_kept; k++) clime_db_close(r->kept[k]);
        clime_tokenizer_free(r->own);
        clime_buf_free(&r->fleet);
        pthread_mutex_destroy(&r->fleet_lock);
        pthread_mutex_destroy(&r->lock);
        free(r->dir);
        free(r->ledger);
    }
    free(p->runs);
    free(p);
}
