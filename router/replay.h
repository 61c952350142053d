/* Replay state of a /generate stream: what its events contained so far, enough for another worker to resume it.
 *
 * X-Clime-Stream in the head states the kind. Events of a cumulative stream repeat everything: the last of each output
 * is kept unchanged. Events of an incremental one have only what is new: the lists are kept and grow. Both are accepted
 * by the server's member "resume". One HTTP thread; the bytes kept by all streams are counted together. */
#ifndef CLIME_ROUTER_REPLAY_H
#define CLIME_ROUTER_REPLAY_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/buf.h"

struct clime_replay_memory {
    atomic_llong used;
    int64_t max; /* streams above it cannot be resumed */
};

struct clime_replay_output;

struct clime_replay {
    struct clime_replay_memory *memory;
    enum { CLIME_REPLAY_NONE, CLIME_REPLAY_CUMULATIVE, CLIME_REPLAY_INCREMENTAL } kind;
    bool lost;                        /* too large or unexpected: the stream cannot be resumed */
    bool done;                        /* [DONE] was sent to the client */
    struct clime_replay_output *outs; /* [n_outs] */
    int n_outs;
    int64_t bytes; /* its share of memory->used */
};

void clime_replay_init(struct clime_replay *p, struct clime_replay_memory *memory);
void clime_replay_free(struct clime_replay *p);

/* Begins a stream, first or resumed. kind: the value of X-Clime-Stream, empty if absent. False when a resumed stream is
 * of another kind than the first. */
bool clime_replay_begin(struct clime_replay *p, const char *kind);

/* What to do with a complete event. */
enum clime_replay_verdict {
    CLIME_REPLAY_PASS,
    CLIME_REPLAY_DROP, /* of an output that the client has in full */
    CLIME_REPLAY_ERROR /* the worker cannot resume; *status is the reason */
};
enum clime_replay_verdict clime_replay_event(struct clime_replay *p, struct clime_str event, int *status);

void clime_replay_lose(struct clime_replay *p);

/* True while the stream can be resumed. */
bool clime_replay_can_go_on(const struct clime_replay *p);

/* True for a parsed stream without [DONE] so far: if it ends now, it is broken. */
bool clime_replay_lacks_end(const struct clime_replay *p);

/* Writes the request that asks another worker to resume; body: the original. False when it cannot be resumed. */
bool clime_replay_request(struct clime_replay *p, struct clime_str body, struct clime_buf *out);

#endif
