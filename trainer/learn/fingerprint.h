/* The SHA-256 of a model's weights, computed beside the main thread while the servers generate: for 8 GB it takes a
 * core some six seconds, which a rollout would otherwise wait for; where the model is on a device of its own, all of
 * the trainer's threads share them.
 *
 * begin and end are the main thread's; between the two the weights must not change.
 */
#ifndef CLIME_TRAINER_LEARN_FINGERPRINT_H
#define CLIME_TRAINER_LEARN_FINGERPRINT_H

#include <pthread.h>

#include "model/model.h"

struct clime_fingerprint { /* zero = closed */
    const struct clime_model *model;
    struct clime_dev *dev; /* a second context on the model's device; opened at first use */
    pthread_t thread;
    int n_threads;
    bool running, has_thread;
    char hex[65];
    enum clime_err err;
    struct clime_error error;
};

/* dev: as the model's own. */
void clime_fingerprint_begin(struct clime_fingerprint *f, const struct clime_model *m,
                             const struct clime_dev_options *dev);
/* Waits for the thread; the hash is in f->hex. Must follow a begin. */
enum clime_err clime_fingerprint_end(struct clime_fingerprint *f, struct clime_error *e);
void clime_fingerprint_close(struct clime_fingerprint *f);

#endif
