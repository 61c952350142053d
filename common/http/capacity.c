/* Capacity of an HTTP server: slots for its threads, and their use (see server.h). Called by server.c at start and by
 * /metrics, any thread; owns nothing. */
#include <sys/resource.h>

#include "common/http/server_int.h"
#include "common/log.h"

#define MOST_KEPT 64 /* maximum threads kept free of requests with slots */

void clime_http_raise_file_limit(int n_threads) {
    struct rlimit l;
    rlim_t want = (rlim_t)n_threads * 4 + 256;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= want) return;
    l.rlim_cur = want < l.rlim_max ? want : l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur < want)
        LOG_WARN("http: %d threads may need %llu open files; the limit is %llu", n_threads, (unsigned long long)want,
                 (unsigned long long)l.rlim_cur);
}

int clime_http_slots(int n_threads) {
    int kept = n_threads / 4 > MOST_KEPT ? MOST_KEPT : n_threads / 4;
    return n_threads - (kept > 2 ? kept : n_threads > 3 ? 2 : 1);
}

int clime_http_threads(int n_slots) {
    return n_slots + MOST_KEPT;
}

int clime_http_choose_slots(const struct clime_http_options *o) {
    int most = clime_http_slots(o->n_threads);
    if (o->n_slots > most)
        LOG_WARN("http: %d threads leave %d for requests that wait, not %d: more get 429", o->n_threads, most,
                 o->n_slots);
    return o->n_slots > 0 && o->n_slots < most ? o->n_slots : most;
}

void clime_http_metrics(struct clime_http_request *rq, struct clime_buf *out) {
    const struct clime_http_server *s = rq->server->main;
    const struct {
        const char *name, *kind, *help;
        long long value;
    } all[] = {
        {"clime_http_threads", "gauge", "connections served at a time", s->o.n_threads},
        {"clime_http_connections", "gauge", "open connections, idle ones too",
         clime_http_connections_count(s->connections)},
        {"clime_http_slots", "gauge", "requests that may wait at a time", s->n_slots},
        {"clime_http_slots_held", "gauge", "requests that hold a slot", atomic_load(&s->n_held)},
        {"clime_http_permits_waiting", "gauge", "requests with a slot that wait for few others to have begun",
         clime_permits_waiting(s->permits)},
        {"clime_http_refused_total", "counter", "requests that found no slot", atomic_load(&s->n_refused)},
    };
    for (size_t i = 0; i < CLIME_COUNT(all); i++)
        clime_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %lld\n", all[i].name, all[i].help, all[i].name,
                         all[i].kind, all[i].name, all[i].value);
    if (s->keys && clime_http_is_known(rq)) clime_http_keys_metrics(s->keys, out);
}
