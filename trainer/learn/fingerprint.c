/* Background hashing of weights (trainer/learn/fingerprint.h). Called by the loop on the main thread; owns the thread
 * and its device context, since a context belongs to one thread. Weights are copied to the host in pieces, never as a
 * whole. Invariant: the weights do not change between begin and end. */
#include "trainer/learn/fingerprint.h"

#include <stdlib.h>
#include <string.h>

static void *hash_weights(void *arg) {
    struct clime_fingerprint *f = arg;
    const struct clime_model *m = f->model;
    struct clime_model_pieces p;
    m->ops->bind(f->dev);
    clime_model_pieces_open(&p, m, f->dev);
    /* on a CPU device the servers need the cores now */
    f->err = clime_weights_sha256(&m->layout, &p.from, m->ops->own_memory ? f->n_threads : 1, f->hex, &f->error);
    clime_model_pieces_close(&p);
    return NULL;
}

void clime_fingerprint_begin(struct clime_fingerprint *f, const struct clime_model *m,
                             const struct clime_dev_options *dev) {
    struct clime_dev_options o = *dev;
    CHECK(!f->running && (!f->model || f->model == m));
    f->model = m;
    f->running = true;
    o.dt = clime_dev_info(m->dev)->dt;
    f->n_threads = o.n_threads;
    o.n_threads = 1;
    f->err = f->dev ? CLIME_OK : m->ops->open(&o, &f->dev, &f->error);
    f->has_thread = !f->err && !pthread_create(&f->thread, NULL, hash_weights, f);
    if (!f->has_thread && !f->err) { /* no thread: compute here. A running thread owns err */
        hash_weights(f);
        m->ops->bind(m->dev);
    }
}

enum clime_err clime_fingerprint_end(struct clime_fingerprint *f, struct clime_error *e) {
    CHECK(f->running);
    if (f->has_thread) pthread_join(f->thread, NULL);
    f->running = f->has_thread = false;
    if (f->err && e) *e = f->error;
    return f->err;
}

void clime_fingerprint_close(struct clime_fingerprint *f) {
    if (f->running) clime_fingerprint_end(f, NULL);
    if (f->dev) f->model->ops->close(f->dev);
    *f = (struct clime_fingerprint){0};
}
