/* Fetches a packet from its sources: URLs of programs that relay packets (model/packet/shelf.h), and folders. One
 * source at a time; when it dies, stalls or sends bytes that do not match the packet's hash, the next one continues at
 * the same place. HTTP workers; owned by the pulling thread.
 */
#ifndef CLIME_SERVER_UPDATE_FETCH_H
#define CLIME_SERVER_UPDATE_FETCH_H

#include "common/http/client.h"
#include "model/packet/packet.h"

#define CLIME_FETCH_SOURCES 16

struct clime_fetch {
    const char *sources[CLIME_FETCH_SOURCES]; /* "http://..", "https://.." or a folder, nearest first */
    int n_sources, at;                        /* at: the current one */
    const char *bearer;                       /* NULL = none */
    int64_t deadline_us, stall_us;            /* clime_now_us scale; stall: of one source that is silent or slow */
    bool (*cancel)(void *arg);
    void *arg;
    uint64_t n_bytes; /* received in total */
    int n_turned;     /* sources given up */
    struct clime_http_client *http;
};

/* Fetches the manifest with this id, for a model of shape s. CLIME_ERR_UNAVAILABLE: no source has it; e is the last
 * one's error. */
enum clime_err clime_fetch_manifest(struct clime_fetch *f, const uint8_t id[CLIME_PACKET_ID],
                                    const struct clime_packet_shape *s, struct clime_packet **out,
                                    struct clime_error *e);

/* Applies the needed blocks of p (needed[n_blocks], NULL: all that change anything) to flat as they arrive. keep: keep
 * their packed bytes in p. */
enum clime_err clime_fetch_blocks(struct clime_fetch *f, struct clime_packet *p, const bool *needed, bool keep,
                                  void *flat, struct clime_error *e);

#endif
