/* New weights for a running server: over HTTP or from a folder, into staging memory, verified, then swapped in at a
 * step boundary (server/engine.h). One update at a time; any thread.
 */
#ifndef CLIME_SERVER_WEIGHT_UPDATE_H
#define CLIME_SERVER_WEIGHT_UPDATE_H

#include <pthread.h>

#include "server/server.h"

struct clime_weight_update {
    pthread_mutex_t lock; /* held by the update that is going on */
    char last_sha[65];    /* hash of the body that made the present version; "" = it came otherwise. Under lock */
};

void clime_weight_update_init(struct clime_weight_update *u);
void clime_weight_update_free(struct clime_weight_update *u);

#endif
