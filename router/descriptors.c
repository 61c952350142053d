/* Fits the router to the limit of open files (router.h). Called by main before anything starts.
 *
 * Without it a burst of clients uses up the descriptors, no worker can be reached, and accepted requests fail. */
#include <sys/resource.h>

#include "common/log.h"
#include "router/connections.h"
#include "router/router.h"

/* For the process, queued connections, probes and control calls. */
#define OTHER_DESCRIPTORS (64 + 128 + 32 * CLIME_CLIENT_DESCRIPTORS)

static int64_t of_a_thread(const struct clime_concurrency *c) {
    return c->n_ports + CLIME_CLIENT_DESCRIPTORS;
}

static int64_t needed(const struct clime_concurrency *c) {
    return OTHER_DESCRIPTORS + c->n_threads * of_a_thread(c) + (int64_t)c->max_kept * CLIME_CLIENT_DESCRIPTORS;
}

enum clime_err clime_router_fit_descriptors(struct clime_concurrency *c, struct clime_error *e) {
    struct rlimit l;
    int64_t want = needed(c);
    int asked = c->n_threads;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == RLIM_INFINITY || (int64_t)l.rlim_cur >= want) return CLIME_OK;
    int64_t limit = (int64_t)l.rlim_cur; /* clime_process_begin has raised it to the maximum */
    /* Reserves idle connections for a quarter of the threads while descriptors are short. */
    c->n_threads = (int)((limit - OTHER_DESCRIPTORS) * 4 / (of_a_thread(c) * 4 + CLIME_CLIENT_DESCRIPTORS));
    if (c->n_threads / 4 < c->max_kept) c->max_kept = c->n_threads / 4;
    if (c->n_threads < 8)
        return clime_fail(e, CLIME_ERR_LIMIT, "%lld file descriptors are too few: raise the limit (ulimit -Hn)",
                          (long long)limit);
    LOG_WARN("%lld file descriptors are enough for %d connections at a time, not %d: raise the limit (ulimit -Hn %lld)",
             (long long)limit, c->n_threads, asked, (long long)want);
    return CLIME_OK;
}
