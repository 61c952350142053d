/* Weight packets for servers that pull: each version as a delta from the one before, with a whole one at intervals
 * (model/packet/packet.h). Served by an own listener, GET /weight_packets/{id}, or written to a folder that the servers
 * see. publish: owner's thread; body and bytes: any thread. */
#ifndef CLIME_TRAINER_FLEET_SOURCE_H
#define CLIME_TRAINER_FLEET_SOURCE_H

#include "common/buf.h"
#include "model/weights/layout.h"

struct clime_source_options {
    const char *host;   /* the listener's address for servers */
    const char *folder; /* write files in it, a folder of this run alone; NULL = use the listener */
    const char *key;    /* required of servers; NULL = none */
    int chain;          /* deltas kept; a whole version follows after that many */
};

struct clime_source_packet { /* the last packet */
    int64_t version;
    uint64_t bytes;
    double density; /* fraction of elements changed; 1 for a first, whole packet */
};

struct clime_source;

enum clime_err clime_source_open(const struct clime_source_options *o, struct clime_source **out,
                                 struct clime_error *e);
void clime_source_close(struct clime_source *s); /* NULL is fine */

/* Makes flat (host memory, layout l) the current version. Keeps a copy. */
enum clime_err clime_source_publish(struct clime_source *s, const struct clime_layout *l, int64_t version,
                                    const void *flat, struct clime_error *e);

/* The body of POST /pull_weights. label: of the version; relay: server to pull from first, or NULL. */
void clime_source_body(struct clime_source *s, int64_t version, const char *label, const char *relay, bool keep_kv,
                       int64_t timeout_us, struct clime_buf *out);

uint64_t clime_source_bytes(struct clime_source *s); /* of all packets on offer */
bool clime_source_is_folder(const struct clime_source *s);
struct clime_source_packet clime_source_last(const struct clime_source *s); /* owner's thread */

#endif
