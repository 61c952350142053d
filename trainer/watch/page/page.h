/* The page of one or several runs: an HTTP server whose answers are read from their ledgers, and the files of the page
 * itself. It only reads: every route but one is a GET, every connection to a ledger is a reading one, so it shows live
 * and ended runs alike and takes no part in them. The one is for orders to the run that serves it (control.h), which
 * it takes where it was given a control.
 *
 * Nouns
 *   run    a run folder, by its number in the order in which they were given (0 is the first)
 *   asset  a file of the page: trainer/watch/page/assets/ or common/page/, inside the program
 *
 * Opened and closed by the main thread; handlers run on the server's threads, a ledger connection each while they
 * answer. openapi/page.yaml describes the routes. Reading needs no key: on a loopback address a web page of another
 * host cannot read it (common/http/origin.c), on another address whoever reaches it can.
 */
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
    /* Where the port is written, NULL = nowhere. With port 0 the port that an earlier start left there is taken again
     * if it is free, so that a page which stayed open finds its run. */
    const char *port_file;
    /* Of the first run, borrowed. NULL: every run's is looked for in its folder (hf/), then in tokenizer_dir. */
    const struct clime_tokenizer *tokenizer;
    const char *tokenizer_dir; /* may be NULL */
    /* Of the first run, where it is not the run's own, with what it must be sent as a bearer; NULL = none. */
    const char *router_url, *router_key;
    /* Orders to the first run, borrowed; NULL: none are taken, the page only reads. */
    struct clime_page_control *control;
};

/* CLIME_ERR_NOT_FOUND, CLIME_ERR_INPUT: a ledger that cannot be read, by its name; CLIME_ERR_UNAVAILABLE: the port. */
enum clime_err clime_page_open(const struct clime_page_options *o, struct clime_page **out, struct clime_error *e);
int clime_page_port(const struct clime_page *p);
/* "http://127.0.0.1:PORT/"; a host of all addresses is shown as the loopback one. */
void clime_page_url(const struct clime_page *p, char *out, size_t size);
void clime_page_close(struct clime_page *p); /* NULL is fine */

extern const struct clime_http_route clime_page_routes[]; /* for --print-routes */

#endif
