/* Relay: attempts to have a request answered by a worker, and the client's reply.
 *
 * A stream is passed on event by event, so a worker's death never cuts an event in half. Any other answer, or a stream
 * with a content coding, is buffered until complete. Until the first byte is sent the proxy may retry on another worker
 * with the same relay; afterwards only where the stream's events allow it to resume (replay.h). One HTTP thread. */
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
    struct clime_error e;          /* code CLIME_OK: pass on the worker's own answer */
    bool call_failed;              /* e is from the HTTP client and has the worker's address in it */
    char worker[CLIME_WORKER_URL]; /* its worker; a copy, since the reply may follow the lease's end */
    bool connected;                /* the worker may have seen the request */
    bool refused;                  /* it refused the router's key */
    int status;                    /* of its answer */
    struct clime_buf body;         /* an answer that is not a stream */
    struct clime_buf held;         /* stream: the incomplete event */
    struct clime_head head;
    bool coded;                  /* content coding such as gzip: its events cannot be read */
    bool streamed;               /* the answer is a stream and is passed on */
    bool progressed;             /* events of it were sent to the client */
    struct clime_buf last_words; /* the error event that ended the stream */

    /* Set for the next attempt */
    bool settled; /* keep a suspected worker until it sends events */

    /* Of all attempts */
    struct clime_http_stream *stream; /* set once the head of a stream is sent */
    struct clime_replay replay;       /* what was sent to the client */
    struct clime_buf again;           /* the request that resumes the stream; empty = as received */

    /* While it lasts */
    struct clime_lease *lease;
    bool has_own_key; /* a key of the router's was sent to the worker */
    int64_t heard_us; /* last byte from the worker, or the start */
    int64_t began_us; /* start of the attempt */
    int64_t look_us;  /* next check of client and worker */
    /* why it ended; foreign: a stream that cannot resume */
    bool client_gone, worker_frozen, worker_suspected, cut, foreign;
    char kind[16];     /* X-Clime-Stream */
    bool inside_event; /* of the stream to the client */
};

void clime_relay_init(struct clime_relay *y, struct clime_router *r, struct clime_http_request *rq, const char *target);
void clime_relay_free(struct clime_relay *y);

/* Sends the request to the leased worker; sets the fields of the last attempt. */
void clime_relay_attempt(struct clime_relay *y, struct clime_lease *lease);
/* Makes the next attempt resume a broken stream. False when it cannot be resumed. */
bool clime_relay_go_on(struct clime_relay *y);
/* Sends the client the answer, the error, or an error event and the end of the stream. */
void clime_relay_finish(struct clime_relay *y);

#endif
