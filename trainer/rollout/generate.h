/* One /generate call: the body of a request, and the sample in the reply. Pure functions over text, any thread. */
#ifndef CLIME_TRAINER_ROLLOUT_GENERATE_H
#define CLIME_TRAINER_ROLLOUT_GENERATE_H

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"
#include "trainer/sample/request.h"

#define CLIME_GENERATE_MAX_REPLY ((size_t)256 << 20)

/* Appends the JSON body of r's next try; tokens that the sample has already are part of the input. */
void clime_generate_body(const struct clime_request *r, struct clime_buf *out);

enum clime_generate_outcome {
    CLIME_GENERATE_DONE,    /* the sample is filled: COMPLETED or TRUNCATED; ABORTED when its owner stopped it */
    CLIME_GENERATE_ABORTED, /* the server stopped it and nobody asked for that; try again */
    CLIME_GENERATE_STALE,   /* sampled by a version that it must not be of; try again */
    CLIME_GENERATE_CUT,     /* a stream ended before the answer did; try again */
    CLIME_GENERATE_BROKEN,  /* the reply is not what it must be: e says why */
};

/* Reads the reply of a try into r->sample: ids, log-probabilities, mask and versions are added to what it holds, status
 * and finish are set. Only DONE changes the sample. */
enum clime_generate_outcome clime_generate_read(struct clime_request *r, struct clime_str reply, struct clime_error *e);

/* The reply as a stream of events, of a request whose listener wants news (clime_generate_streams; the body asks for
 * it): the listener is told of its tokens as they come. One thread. */
struct clime_generate_stream;
bool clime_generate_streams(const struct clime_request *r);
struct clime_generate_stream *clime_generate_stream_new(struct clime_request *r);
void clime_generate_stream_free(struct clime_generate_stream *s);
/* More of the reply. False: the rest is not wanted. */
bool clime_generate_stream_feed(struct clime_generate_stream *s, const char *data, size_t len);
bool clime_generate_stream_over(const struct clime_generate_stream *s); /* what came of it is known */
/* What came of it; as clime_generate_read. complete: nothing broke, the reply ended where it said. One that came as a
 * whole and not in events, as from somebody between us and the server, is read as such. */
enum clime_generate_outcome clime_generate_stream_end(const struct clime_generate_stream *s, bool complete,
                                                      struct clime_error *e);

#endif
