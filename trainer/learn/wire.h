/* Serialization of rank 0's messages to the other ranks: options at the start, then samples, estimates and packing of
 * each command. All ranks run one build, so numbers and plain structs are sent raw. Pure; main thread.
 *
 * Writing appends to a clime_buf, whose cap limits the message (`full` is set above it). Reading past the end sets
 * `bad` and returns zeros. */
#ifndef CLIME_TRAINER_LEARN_WIRE_H
#define CLIME_TRAINER_LEARN_WIRE_H

#include "common/buf.h"
#include "trainer/learn/learning.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/sample.h"

struct clime_wire { /* reader */
    const char *at, *end;
    bool bad;
};

int64_t clime_wire_int(struct clime_wire *w);
void clime_wire_put_int(struct clime_buf *b, int64_t x);
char *clime_wire_text(struct clime_wire *w); /* caller frees; NULL stays NULL */
void clime_wire_put_text(struct clime_buf *b, const char *text);

/* A learner's options, without those only rank 0 uses (functions for rewards and advantages). CLIME_ERR_INPUT if the
 * writer is another version of the program, because structs are sent raw. The reader opens the library of a custom loss
 * and keeps the texts for the life of the process. */
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
