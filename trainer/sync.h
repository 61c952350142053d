/* Weights to a server: PUT /weights/{version}, a safetensors body streamed from the trainer's host copy, with the
 * body's SHA-256 in a header; the server checks it before the weights take effect. The label of a version is its number
 * as text.
 */
#ifndef CLIME_TRAINER_SYNC_H
#define CLIME_TRAINER_SYNC_H

#include "common/http/client.h"
#include "model/weights.h"

struct clime_push {
    int64_t version;
    char body_sha256[65];
    const struct clime_layout *layout; /* borrowed */
    enum clime_dtype dt;
    const void *flat; /* host memory, layout->n elements; must not change while pushes run */
    int64_t timeout_us;
};

/* Fills *p; reads the whole body once for its hash. */
void clime_push_make(const struct clime_layout *layout, enum clime_dtype dt, const void *flat, int64_t version,
                     int64_t timeout_us, struct clime_push *p);

/* Pushes to one server ("http://host:port") and asks it which version it serves now. Any thread, its own client.
 * CLIME_ERR_INTERNAL when the server answers with another version, or refuses (the message holds its words). */
enum clime_err clime_push_weights(struct clime_http_client *c, const char *url, const struct clime_push *p,
                                  struct clime_error *e);

/* The label of the weights that a server serves. */
enum clime_err clime_weight_version(struct clime_http_client *c, const char *url, char label[64],
                                    struct clime_error *e);

/* Pushes to n servers at the same time, a thread each; err[i].code says how it went for urls[i]. */
void clime_push_all(const char *const *urls, int n, const struct clime_push *p, struct clime_error *err);

#endif
