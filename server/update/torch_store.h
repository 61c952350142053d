/* A client of torch's TCPStore, the table of keys over which the ranks of a torch group find each other: rank 0's
 * process serves it, all others connect. What a group needs is here and no more: to be counted, and to read a key.
 *
 * The wire is that of libtorch 2.1 to 2.11, of both its servers (libuv's and the older one): one byte of query, then
 * its arguments; numbers as the machine has them; text is a 64-bit length and bytes. Owner: one thread at a time.
 * Every function ends within wait->limit_us (only the look-up of a host name has the resolver's limits) with
 * CLIME_ERR_TIMEOUT, with CLIME_ERR_ABORTED when it is cancelled, or with CLIME_ERR_UNAVAILABLE when the store is gone
 * or says what no store says; after an error only close may follow.
 */
#ifndef CLIME_SERVER_UPDATE_TORCH_STORE_H
#define CLIME_SERVER_UPDATE_TORCH_STORE_H

#include <stdint.h>

#include "common/buf.h"
#include "kernels/kernels.h"

struct clime_torch_store;

/* Connects, again and again while nobody listens, and counts itself in: the process that serves the store waits until
 * all of its world have. */
enum clime_err clime_torch_store_open(const char *host, int port, const struct clime_comm_wait *wait,
                                      struct clime_torch_store **out, struct clime_error *e);
void clime_torch_store_close(struct clime_torch_store *s); /* NULL is fine */

/* Waits until somebody has set the key; its value, at most out->cap bytes. key: as in torch, without the slash that the
 * store puts before it. */
enum clime_err clime_torch_store_get(struct clime_torch_store *s, const char *key, const struct clime_comm_wait *wait,
                                     struct clime_buf *out, struct clime_error *e);

#endif
