/* A packet's bytes from the sources that have it: URLs of programs that hand packets on (model/packet/shelf.h), and
 * folders. One source at a time; when it dies, freezes or has other bytes than the packet's name says, the next one
 * goes on where it was. HTTP workers; belongs to the thread that pulls.
 */
#ifndef CLIME_SERVER_UPDATE_FETCH_H
#define CLIME_SERVER_UPDATE_FETCH_H

#include "common/http/client.h"
#include "model/packet/packet.h"

#define CLIME_FETCH_SOURCES 16

struct clime_fetch {
    const char *sources[CLIME_FETCH_SOURCES]; /* "http://..", "https://.." or a folder, the nearest first */
    int n_sources, at;                        /* at: the one that is asked now */
    const char *bearer;                       /* NULL = none */
    int64_t deadline_us, stall_us;            /* clime_now_us scale; of one source that sends nothing, or trickles */
    bool (*cancel)(void *arg);
    void *arg;
    uint64_t n_bytes; /* that came, in all */
    int n_turned;     /* sources that were turned away from */
    struct clime_http_client *http;
};

/* The manifest of this name, for a model of shape s. CLIME_ERR_UNAVAILABLE: no source has it, e says what the last one
 * said. */
enum clime_err clime_fetch_manifest(struct clime_fetch *f, const uint8_t id[CLIME_PACKET_ID],
                                    const struct clime_packet_shape *s, struct clime_packet **out,
                                    struct clime_error *e);

/* Applies the blocks of p that are needed (needed[n_blocks], NULL: all that change anything) to flat, one after the
 * other as they come. keep: their packed bytes stay in p. */
enum clime_err clime_fetch_blocks(struct clime_fetch *f, struct clime_packet *p, const bool *needed, bool keep,
                                  void *flat, struct clime_error *e);

#endif
