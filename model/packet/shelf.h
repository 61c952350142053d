/* The packets that a program hands on: by HTTP (GET /weight_packets/{id}), to whoever has the key that the route asks
 * for. A trainer puts there what it publishes, a server what it has pulled, so that the next ones pull from it.
 *
 * Bounded: of whole versions the newest is kept, of the others the last few, and of all so many bytes. Any thread.
 */
#ifndef CLIME_MODEL_PACKET_SHELF_H
#define CLIME_MODEL_PACKET_SHELF_H

#include "common/http/server.h"
#include "model/packet/packet.h"

#define CLIME_PACKETS_PATH "/weight_packets/"

struct clime_shelf;

struct clime_shelf *clime_shelf_new(int most_deltas, uint64_t most_bytes);
void clime_shelf_free(struct clime_shelf *s); /* nobody is served any more; NULL is fine */

/* Takes p over, which is whole in memory. What it makes superfluous goes when nobody reads it any more; p itself when
 * it is larger than all may be, or there already. */
void clime_shelf_put(struct clime_shelf *s, struct clime_packet *p);

/* Calls fn for each, the oldest first, under the shelf's lock. */
void clime_shelf_each(struct clime_shelf *s, void (*fn)(void *arg, const struct clime_packet *p), void *arg);

bool clime_shelf_has(struct clime_shelf *s, const uint8_t id[CLIME_PACKET_ID]);
uint64_t clime_shelf_bytes(struct clime_shelf *s);        /* of what is there */
uint64_t clime_shelf_handed_bytes(struct clime_shelf *s); /* sent since the start */

/* The handler: ?at=BYTE&length=BYTES, by default all of it. 404: it is not here (any more). */
void clime_shelf_serve(struct clime_shelf *s, struct clime_http_request *rq);

/* A name as it stands in URLs and files: 64 hex digits, and back; false: it is none. */
void clime_packet_hex(const uint8_t id[CLIME_PACKET_ID], char out[65]);
bool clime_packet_unhex(struct clime_str hex, uint8_t id[CLIME_PACKET_ID]);

#endif
