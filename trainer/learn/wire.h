/* What rank 0 tells the other ranks, as bytes: options at the start, then samples, estimates and packing of every
 * command. All ranks are one build, so numbers and plain structures go as they are. Pure; main thread.
 *
 * Writing appends to a clime_buf, whose cap is the limit of a message (it gets `full`). Reading never goes past the
 * end: what is too short sets `bad` and gives zeros. */
#ifndef CLIME_TRAINER_LEARN_WIRE_H
#define CLIME_TRAINER_LEARN_WIRE_H

#include "common/buf.h"
#include "trainer/learn/learning.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/sample.h"

struct clime_wire { /* what is read */
    const char *at, *end;
    bool bad;
};

int64_t clime_wire_int(struct clime_wire *w);
void clime_wire_put_int(struct clime_buf *b, int64_t x);
char *clime_wire_text(struct clime_wire *w); /* owned; NULL as it was given */
void clime_wire_put_text(struct clime_buf *b, const char *text);

/* A learner's options, without what only rank 0 uses (its functions for rewards and advantages). CLIME_ERR_INPUT where
 * the writer is another version of the program: what is sent are structs. The reader opens the library of a custom
 * loss. Whoever reads keeps them for good: nothing frees the texts. */
void clime_wire_put_options(struct clime_buf *b, const struct clime_learner_options *o);
enum clime_err clime_wire_options(struct clime_wire *w, struct clime_learner_options *o, struct clime_error *e);

struct clime_wire_batch { /* owned */
    struct clime_sample **samples;
    struct clime_estimate *estimate; /* NULL = none */
    int n;
    struct clime_packing packing;
};
void clime_wire_put_batch(struct clime_buf *b, const struct clime_sample *const *samples,
                          const struct clime_estimate *estimate, int n, const struct clime_packing *p);
enum clime_err clime_wire_batch(struct clime_wire *w, struct clime_wire_batch *out, struct clime_error *e);
void clime_wire_batch_free(struct clime_wire_batch *b);

#endif
