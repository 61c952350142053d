/* Packets that a program serves over HTTP (GET /weight_packets/{id}) to clients with the route's key. A trainer adds
 * what it publishes, a server what it has pulled, so that other servers can pull from it.
 *
 * Bounded: keeps the newest whole version, the last few deltas, and at most most_bytes in all. Any thread.
 */
#ifndef CLIME_MODEL_PACKET_SHELF_H
#define CLIME_MODEL_PACKET_SHELF_H

#include "common/http/server.h"
#include "model/packet/packet.h"

#define CLIME_PACKETS_PATH "/weight_packets/"

struct clime_shelf;

struct clime_shelf *clime_shelf_new(int most_deltas, uint64_t most_bytes);
void clime_shelf_free(struct clime_shelf *s); /* no requests may be running; NULL is fine */

/* Takes ownership of p, which must be complete. Packets it supersedes are freed after their last reader; so is p itself
 * when it exceeds the limit or is already there. */
void clime_shelf_put(struct clime_shelf *s, struct clime_packet *p);

/* Calls fn for each, oldest first, under the shelf's lock. */
void clime_shelf_each(struct clime_shelf *s, void (*fn)(void *arg, const struct clime_packet *p), void *arg);

bool clime_shelf_has(struct clime_shelf *s, const uint8_t id[CLIME_PACKET_ID]);
uint64_t clime_shelf_bytes(struct clime_shelf *s);        /* of all packets */
uint64_t clime_shelf_handed_bytes(struct clime_shelf *s); /* sent since the start */

/* The HTTP handler: ?at=BYTE&length=BYTES, by default all of it. 404: unknown packet, or no longer kept. */
void clime_shelf_serve(struct clime_shelf *s, struct clime_http_request *rq);

/* A packet's name in URLs and files: 64 hex digits, and back; false: not a name. */
void clime_packet_hex(const uint8_t id[CLIME_PACKET_ID], char out[65]);
bool clime_packet_unhex(struct clime_str hex, uint8_t id[CLIME_PACKET_ID]);

#endif
