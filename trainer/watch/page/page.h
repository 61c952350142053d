/* Run page: an HTTP server for one or several runs that reads their ledgers and serves the page's files. Read-only:
 * every route but one is a GET and ledger connections only read, so it works for live and ended runs alike. The
 * exception takes orders for the run that serves the page (control.h), if it has a control.
 *
 * Nouns
 *   run    a run folder, by its index on the command line (0 is the first)
 *   asset  a file of the page: trainer/watch/page/assets/ or common/page/, embedded in the program
 *
 * Opened and closed by the main thread; handlers run on the server's threads, each with a ledger connection. Routes:
 * openapi/page.yaml. Reading needs no key: on a loopback address web pages of other hosts cannot read it
 * (common/http/origin.c); on another address any client can. */
#ifndef CLIME_TRAINER_WATCH_PAGE_PAGE_H
#define CLIME_TRAINER_WATCH_PAGE_PAGE_H

#include "common/http/server.h"
#include "text/tokenizer.h"
#include "trainer/watch/page/control.h"

struct clime_page;

struct clime_page_options {
    const char *host;
    int port; /* 0 = any */
    const char *const *runs;
    int n_runs;
    /* The port is written to this file, NULL = none. With port 0 the port from an earlier start is reused if free, so
     * an open page finds its run. */
    const char *port_file;
    /* Of the first run, borrowed. NULL: each run's is searched in its folder (hf/), then in tokenizer_dir. */
    const struct clime_tokenizer *tokenizer;
    const char *tokenizer_dir; /* may be NULL */
    /* Of the first run, if not its own router, with the bearer key; NULL = none. */
    const char *router_url, *router_key;
    /* Orders to the first run, borrowed; NULL: read-only. */
    struct clime_page_control *control;
};

/* CLIME_ERR_NOT_FOUND, CLIME_ERR_INPUT: a ledger cannot be read; CLIME_ERR_UNAVAILABLE: the port. */
enum clime_err clime_page_open(const struct clime_page_options *o, struct clime_page **out, struct clime_error *e);
int clime_page_port(const struct clime_page *p);
/* "http://127.0.0.1:PORT/"; a wildcard host is shown as loopback. */
void clime_page_url(const struct clime_page *p, char *out, size_t size);
void clime_page_close(struct clime_page *p); /* NULL is fine */

extern const struct clime_http_route clime_page_routes[]; /* for --print-routes */

#endif
