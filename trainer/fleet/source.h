/* What a trainer publishes for servers that pull: each version as a packet from the one before, and now and then a
 * whole one (model/packet/packet.h). Handed out by a listener of its own, GET /weight_packets/{id}, or written into a
 * folder that the servers see. publish is the owner's; body and bytes any thread's.
 */
#ifndef CLIME_TRAINER_FLEET_SOURCE_H
#define CLIME_TRAINER_FLEET_SOURCE_H

#include "common/buf.h"
#include "model/weights/layout.h"

struct clime_source_options {
    const char *host;   /* the listener's, as the servers reach it */
    const char *folder; /* NULL = by the listener; else files in it, which is this run's alone */
    const char *key;    /* that servers must show; NULL = none */
    int chain;          /* deltas that are kept; after so many there is a whole version again */
};

struct clime_source_packet { /* the last that was made */
    int64_t version;
    uint64_t bytes;
    double density; /* elements that changed, of all; 1 for a first, whole one */
};

struct clime_source;

enum clime_err clime_source_open(const struct clime_source_options *o, struct clime_source **out,
                                 struct clime_error *e);
void clime_source_close(struct clime_source *s); /* NULL is fine */

/* flat, host memory of layout l, is the version from now on. Keeps a copy of it. */
enum clime_err clime_source_publish(struct clime_source *s, const struct clime_layout *l, int64_t version,
                                    const void *flat, struct clime_error *e);

/* The body of POST /pull_weights. label: of the version; relay: a server to be asked first; NULL = none. */
void clime_source_body(struct clime_source *s, int64_t version, const char *label, const char *relay, bool keep_kv,
                       int64_t timeout_us, struct clime_buf *out);

uint64_t clime_source_bytes(struct clime_source *s); /* of all packets that may be asked for */
bool clime_source_is_folder(const struct clime_source *s);
struct clime_source_packet clime_source_last(const struct clime_source *s); /* the owner's */

#endif
