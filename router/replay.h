/* What the events of a /generate stream have told so far: enough for another worker to go on with it.
 *
 * A clime-server says in the stream's head which kind it is (X-Clime-Stream): the events of a cumulative one repeat
 * everything, so the last of each output is kept as it came; those of an incremental one have what is new, so the lists
 * are kept and grow. Either is what the server's member "resume" takes. Of one HTTP thread; the bytes that all streams
 * keep are counted together.
 */
#ifndef CLIME_ROUTER_REPLAY_H
#define CLIME_ROUTER_REPLAY_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/buf.h"

struct clime_replay_memory {
    atomic_llong used;
    int64_t max; /* streams past it cannot be gone on with */
};

struct clime_replay_output;

struct clime_replay {
    struct clime_replay_memory *memory;
    enum { CLIME_REPLAY_NONE, CLIME_REPLAY_CUMULATIVE, CLIME_REPLAY_INCREMENTAL } kind;
    bool lost;                        /* too large, or not as expected: this stream cannot be gone on with */
    bool done;                        /* the client has its [DONE] */
    struct clime_replay_output *outs; /* [n_outs] */
    int n_outs;
    int64_t bytes; /* of memory->used */
};

void clime_replay_init(struct clime_replay *p, struct clime_replay_memory *memory);
void clime_replay_free(struct clime_replay *p);

/* A stream begins, the first or one that goes on; kind is X-Clime-Stream's value, empty where there is none. False when
 * it is not of the kind that the client has seen the beginning of. */
bool clime_replay_begin(struct clime_replay *p, const char *kind);

/* What becomes of a whole event. */
enum clime_replay_verdict {
    CLIME_REPLAY_PASS,
    CLIME_REPLAY_DROP, /* of an output whose end the client has */
    CLIME_REPLAY_ERROR /* the worker says that it cannot go on; *status is why */
};
enum clime_replay_verdict clime_replay_event(struct clime_replay *p, struct clime_str event, int *status);

void clime_replay_lose(struct clime_replay *p);

/* Whether the stream may be gone on with, so far. */
bool clime_replay_can_go_on(const struct clime_replay *p);

/* A stream that is read as it goes by, and has not come to its [DONE]: an end of it is none. */
bool clime_replay_lacks_end(const struct clime_replay *p);

/* The request, body, as another worker is to be asked to go on with it; false when it cannot. */
bool clime_replay_request(struct clime_replay *p, struct clime_str body, struct clime_buf *out);

#endif
