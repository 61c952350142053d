/* One attempt to have a request answered by a worker, and what the client is told in the end.
 *
 * A stream goes through event by event, so that what a worker's death cuts off is no half of one; another answer is
 * kept until it is whole, and so is a stream whose body is coded. So until the first byte has gone to the client the
 * proxy may try another worker with the same relay; after it, where the stream's events say enough to go on (replay.h).
 * Of one HTTP thread. */
#ifndef CLIME_ROUTER_RELAY_H
#define CLIME_ROUTER_RELAY_H

#include "router/head.h"
#include "router/replay.h"
#include "router/router.h"

struct clime_relay {
    struct clime_router *router;
    struct clime_http_request *rq;
    const char *target; /* path and query on any worker */

    /* The last attempt */
    enum clime_outcome outcome;
    struct clime_error e;          /* code CLIME_OK: the worker's own answer is the one to pass on */
    bool call_failed;              /* e is the HTTP client's, with the worker's address in it */
    char worker[CLIME_WORKER_URL]; /* its worker; kept, as the lease may be gone when the client is told */
    bool connected;                /* the worker may have seen the request */
    bool refused;                  /* it did not take the router's key */
    int status;                    /* of its answer */
    struct clime_buf body;         /* an answer that is no stream */
    struct clime_buf held;         /* of a stream: the event that is not whole yet */
    struct clime_head head;
    bool coded;                  /* its body is, as by gzip: it is no stream that can be read */
    bool streamed;               /* the answer is a stream, and it is the client's */
    bool progressed;             /* events of it went to the client */
    struct clime_buf last_words; /* the event by which the worker ended the stream with an error */

    /* Set for the next attempt */
    bool settled; /* it stays with its worker, though that is suspected, unless it has had events from it */

    /* Of all attempts */
    struct clime_http_stream *stream; /* once the client has the head of a stream */
    struct clime_replay replay;       /* what the client has of it */
    struct clime_buf again;           /* the request as it asks to go on; empty = as it came */

    /* While it lasts */
    struct clime_lease *lease;
    bool has_own_key; /* the worker was asked with a key of the router's */
    int64_t heard_us; /* when the worker sent something, or we began */
    int64_t began_us; /* the attempt */
    int64_t look_us;  /* when to look at client and worker again */
    /* why it was ended; foreign: a stream that does not go on */
    bool client_gone, worker_frozen, worker_suspected, cut, foreign;
    char kind[16];     /* X-Clime-Stream */
    bool inside_event; /* of the stream that went to the client */
};

void clime_relay_init(struct clime_relay *y, struct clime_router *r, struct clime_http_request *rq, const char *target);
void clime_relay_free(struct clime_relay *y);

/* Sends the request to the leased worker; sets everything of the last attempt. */
void clime_relay_attempt(struct clime_relay *y, struct clime_lease *lease);
/* A stream that was broken off: makes the next attempt go on with it. False when it cannot. */
bool clime_relay_go_on(struct clime_relay *y);
/* Sends the client what there is: the answer, the error, or the end of the stream, after an event with the error. */
void clime_relay_finish(struct clime_relay *y);

#endif
