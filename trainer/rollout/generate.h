/* Request body and reply parser of one /generate call. Pure, any thread. */
#ifndef CLIME_TRAINER_ROLLOUT_GENERATE_H
#define CLIME_TRAINER_ROLLOUT_GENERATE_H

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"
#include "trainer/sample/request.h"

#define CLIME_GENERATE_MAX_REPLY ((size_t)256 << 20)

/* Appends the JSON body of r's next try; the sample's existing tokens are part of the input. */
void clime_generate_body(const struct clime_request *r, struct clime_buf *out);

enum clime_generate_outcome {
    CLIME_GENERATE_DONE,    /* the sample is filled: COMPLETED or TRUNCATED; ABORTED if its owner stopped it */
    CLIME_GENERATE_ABORTED, /* the server aborted it unasked; retry */
    CLIME_GENERATE_STALE,   /* sampled by a version not allowed; retry */
    CLIME_GENERATE_CUT,     /* the stream ended early; retry */
    CLIME_GENERATE_BROKEN,  /* malformed reply: see e */
};

/* Parses a reply into r->sample: appends ids, log-probabilities, mask and versions, sets status and finish. Only DONE
 * changes the sample. */
enum clime_generate_outcome clime_generate_read(struct clime_request *r, struct clime_str reply, struct clime_error *e);

/* Reply as a stream of events, for a request whose listener wants tokens as they arrive (clime_generate_streams; the
 * body requests it). One thread. */
struct clime_generate_stream;
bool clime_generate_streams(const struct clime_request *r);
struct clime_generate_stream *clime_generate_stream_new(struct clime_request *r);
void clime_generate_stream_free(struct clime_generate_stream *s);
/* Feeds more of the reply. False: ignore the rest. */
bool clime_generate_stream_feed(struct clime_generate_stream *s, const char *data, size_t len);
bool clime_generate_stream_over(const struct clime_generate_stream *s); /* the outcome is known */
/* Outcome, as from clime_generate_read. complete: the reply ended properly. A reply that is not an event stream, as
 * from a proxy, is parsed whole. */
enum clime_generate_outcome clime_generate_stream_end(const struct clime_generate_stream *s, bool complete,
                                                      struct clime_error *e);

#endif
