/* Ends reads from peers that send too slowly: a deadline for a wait that CivetWeb itself cannot bound.
 *
 * Each request lends a watch to its server's guard for as long as it runs and sets the deadline around each read. The
 * guard's thread looks a few times a second; past a deadline it shuts the socket's receiving side, and the read ends as
 * if the peer had left. Answers can still be sent.
 */
#ifndef CLIME_COMMON_HTTP_GUARD_H
#define CLIME_COMMON_HTTP_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct clime_http_guard;

struct clime_http_watch {
    const char *remote_addr; /* of the connection; valid while the watch is lent */
    int remote_port, local_port;
    _Atomic int64_t deadline_us; /* clime_now_us scale; INT64_MAX = none */
    atomic_bool fired;
    struct clime_http_watch *next, *previous; /* the guard's */
};

/* period_us: how often it looks, kept within 20 ms and 1 s. */
struct clime_http_guard *clime_http_guard_new(int64_t period_us);
void clime_http_guard_free(struct clime_http_guard *g); /* no watch may be lent any more */

/* The connection must stay open from add to remove. */
void clime_http_watch_add(struct clime_http_guard *g, struct clime_http_watch *w);
void clime_http_watch_remove(struct clime_http_guard *g, struct clime_http_watch *w);
void clime_http_watch_set(struct clime_http_watch *w, int64_t deadline_us);
bool clime_http_watch_fired(const struct clime_http_watch *w);

#endif
