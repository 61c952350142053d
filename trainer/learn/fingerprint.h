/* SHA-256 of a model's weights, computed in the background while the servers generate. 8 GB take one core about six
 * seconds, which a rollout would otherwise wait for; if the model is on a separate device, all of the trainer's threads
 * share the work.
 *
 * begin and end: main thread. The weights must not change between them.
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

/* dev: the options of the model's own device. */
void clime_fingerprint_begin(struct clime_fingerprint *f, const struct clime_model *m,
                             const struct clime_dev_options *dev);
/* Waits for the thread, then f->hex is the hash. Needs a begin. */
enum clime_err clime_fingerprint_end(struct clime_fingerprint *f, struct clime_error *e);
void clime_fingerprint_close(struct clime_fingerprint *f);

#endif
