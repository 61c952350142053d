/* Internals of the page (threads: page.h). */
#ifndef CLIME_TRAINER_WATCH_PAGE_PAGE_INT_H
#define CLIME_TRAINER_WATCH_PAGE_PAGE_INT_H

#include <pthread.h>

#include "common/json/write.h"
#include "trainer/ledger/db.h"
#include "trainer/watch/page/page.h"

#define CLIME_PAGE_MAX_REPLY ((size_t)256 << 20) /* a group of members with a million tokens, as text */
#define CLIME_PAGE_KEPT 4                        /* idle connections per run */

struct clime_page_run {
    char *dir, *ledger;   /* folder, and ledger.db in it */
    pthread_mutex_t lock; /* guards the fields up to looked */
    struct clime_db *kept[CLIME_PAGE_KEPT];
    int n_kept;
    struct clime_tokenizer *own; /* loaded on first use; NULL = not yet, or none */
    bool looked;
    pthread_mutex_t fleet_lock; /* guards the fleet's last answers, their time (clime_now_us), and asking */
    bool asking;
    struct clime_buf fleet;
    int64_t fleet_us;
};

struct clime_page {
    struct clime_http_server *http;
    char host[256];
    const struct clime_tokenizer *tokenizer; /* of the first run, borrowed; may be NULL */
    const char *tokenizer_dir, *router_key;
    const char *router_url;             /* of the first run; "" = its own */
    struct clime_page_control *control; /* of the first run, borrowed; NULL = read-only */
    struct clime_page_run *runs;
    int n_runs;
};

/* ---- runs.c ---- */

/* acquire: a read-only connection for one answer. release: returns it, or closes it after an error. */
enum clime_err clime_page_acquire(struct clime_page_run *r, struct clime_db **out, struct clime_error *e);
void clime_page_release(struct clime_page_run *r, struct clime_db *db, bool good);
/* The run's tokenizer, NULL if none. Any thread; valid while the page is open. */
const struct clime_tokenizer *clime_page_tokenizer(struct clime_page *p, int run);

/* ---- answer.c ---- */

/* An answer under construction: the path's run, a connection to its ledger, and the JSON. */
struct clime_answer {
    struct clime_page *page;
    struct clime_http_request *rq;
    int run;
    struct clime_db *db;
    struct clime_buf text;
    struct clime_jw w;
};
typedef enum clime_err clime_answer_fn(struct clime_answer *a, struct clime_error *e);

/* Replies with what fn writes to a->w, or with its error. */
void clime_page_answer(struct clime_http_request *rq, void *page, clime_answer_fn *fn);
/* A number in the query string, min..max; CLIME_ERR_INPUT names it. Absent: *out is unchanged. */
enum clime_err clime_page_int(const struct clime_answer *a, const char *name, int64_t min, int64_t max, int64_t *out,
                              struct clime_error *e);
enum clime_err clime_page_real(const struct clime_answer *a, const char *name, double *out, struct clime_error *e);

/* "running": the process of its newest start exists. "ended": it recorded its end. "stopped": neither. */
const char *clime_page_state(int64_t pid, bool ended);

/* ---- routes: assets.c, overview.c, samples.c, fleet.c ---- */

void clime_page_index(struct clime_http_request *rq, void *page);
void clime_page_asset(struct clime_http_request *rq, void *page);
void clime_page_openapi(struct clime_http_request *rq, void *page);
void clime_page_order(struct clime_http_request *rq, void *page);      /* order.c */
void clime_page_prometheus(struct clime_http_request *rq, void *page); /* prometheus.c */
void clime_page_list(struct clime_http_request *rq, void *page);
void clime_page_options_of(struct clime_http_request *rq, void *page);
void clime_page_metrics_of(struct clime_http_request *rq, void *page);
void clime_page_events_of(struct clime_http_request *rq, void *page);
void clime_page_samples(struct clime_http_request *rq, void *page);
void clime_page_group(struct clime_http_request *rq, void *page);
void clime_page_sample(struct clime_http_request *rq, void *page);
void clime_page_prompts(struct clime_http_request *rq, void *page);
void clime_page_answers(struct clime_http_request *rq, void *page);
void clime_page_now(struct clime_http_request *rq, void *page);
void clime_page_times(struct clime_http_request *rq, void *page);

#endif
