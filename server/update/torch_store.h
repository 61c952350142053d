/* Client of torch's TCPStore, the key-value store for the rendezvous of a torch group: rank 0's process serves it, the
 * others connect. Only what a group needs: being counted, and reading a key.
 *
 * Wire format of libtorch 2.1 to 2.11, both servers (libuv and the older one): one query byte, then its arguments;
 * numbers in native byte order; text as a 64-bit length and bytes. Owner: one thread at a time. Every function ends
 * within wait->limit_us (except host name look-up, which has the resolver's limits) with CLIME_ERR_TIMEOUT,
 * CLIME_ERR_ABORTED when cancelled, or CLIME_ERR_UNAVAILABLE when the store is gone or violates the protocol; after an
 * error only close is allowed.
 */
#ifndef CLIME_SERVER_UPDATE_TORCH_STORE_H
#define CLIME_SERVER_UPDATE_TORCH_STORE_H

#include <stdint.h>

#include "common/buf.h"
#include "kernels/kernels.h"

struct clime_torch_store;

/* Connects, retrying until the server listens, and increments the join counter: the serving process waits until its
 * whole world has. */
enum clime_err clime_torch_store_open(const char *host, int port, const struct clime_comm_wait *wait,
                                      struct clime_torch_store **out, struct clime_error *e);
void clime_torch_store_close(struct clime_torch_store *s); /* NULL is fine */

/* Waits until the key is set and reads its value, at most out->cap bytes. key: as in torch, without the leading slash
 * that the store adds. */
enum clime_err clime_torch_store_get(struct clime_torch_store *s, const char *key, const struct clime_comm_wait *wait,
                                     struct clime_buf *out, struct clime_error *e);

#endif
