/* Fetches packets. Called by pull.c, HTTP workers. Owns only the running transfer.
 *
 * Invariant: bytes are used only after the hash of their manifest or block matches: a source can cost time, but cannot
 * change what is applied.
 */
#include "server/update/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "model/packet/shelf.h"

#define PIECE_BYTES ((size_t)256 << 10)
#define CONNECT_US ((int64_t)5000000)
#define MIN_RATE (16 << 10) /* bytes/s: slower, a useful model would take over a day */

/* Received bytes go to `take` in pieces. It fails with CLIME_ERR_INTERNAL when another source may succeed, otherwise
 * for good. */
struct range {
    const uint8_t *id;
    uint64_t at, length;
    enum clime_err (*take)(struct range *r, const char *data, size_t len, struct clime_error *e);
    struct clime_fetch *f;
    uint64_t n_taken;
    int status;
    struct clime_error e;
    /* take's own */
    struct clime_buf *head;
    struct clime_packet *p;
    const bool *needed;
    void *flat;
    bool keep;
    int block; /* the block being filled */
    size_t n_filled;
};

/* ---- one source ---- */

static void on_header(void *arg, int status, const char *name, const char *value) {
    struct range *r = arg;
    (void)name;
    (void)value;
    r->status = status;
}

static bool on_data(void *arg, const char *data, size_t len) {
    struct range *r = arg;
    if (r->status != 200) /* the body may be endless */
        return clime_fail(&r->e, CLIME_ERR_UNAVAILABLE, "%s answers %d", clime_url_shown(r->f->sources[r->f->at]).text,
                          r->status),
               false;
    if (len > r->length - r->n_taken)
        return clime_fail(&r->e, CLIME_ERR_INTERNAL, "it sends more than was asked for"), false;
    r->n_taken += len;
    r->f->n_bytes += len;
    return !r->take(r, data, len, &r->e);
}

static bool cancelled(void *arg) {
    const struct range *r = arg;
    return r->f->cancel(r->f->arg);
}

static enum clime_err from_url(struct range *r, const char *source, const char *hex, struct clime_error *e) {
    char *url = xasprintf("%s" CLIME_PACKETS_PATH "%s?at=%" PRIu64 "&length=%" PRIu64, source, hex, r->at, r->length);
    struct clime_http_call call = {.method = "GET",
                                   .url = url,
                                   .bearer = r->f->bearer,
                                   .connect_timeout_us = r->f->stall_us < CONNECT_US ? r->f->stall_us : CONNECT_US,
                                   .timeout_us = r->f->deadline_us - clime_now_us(),
                                   .stall_us = r->f->stall_us,
                                   .min_rate = MIN_RATE,
                                   .max_reply = PIECE_BYTES,
                                   .on_data = on_data,
                                   .on_header = on_header,
                                   .cancel = cancelled,
                                   .arg = r};
    struct clime_http_result result = {0};
    enum clime_err rc = call.timeout_us <= 0
                            ? clime_fail(e, CLIME_ERR_TIMEOUT, "%s: the time is over", clime_url_shown(url).text)
                            : clime_http_client_call(r->f->http, &call, &result, e);
    if (r->e.code) { /* take's error precedes the transport's */
        *e = r->e;
        rc = e->code;
    } else if (!rc && result.status != 200) {
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s answers %d", clime_url_shown(url).text, result.status);
    }
    clime_buf_free(&result.reply);
    free(url);
    return rc;
}

/* CLIME_ERR_UNAVAILABLE: not a regular file. Does not block on a pipe without a writer. */
static enum clime_err open_file(const char *path, int *fd, struct clime_error *e) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd < 0) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s: %s", path, strerror(errno));
    if (!fstat(*fd, &st) && S_ISREG(st.st_mode)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s is no file", path);
}

static enum clime_err from_folder(struct range *r, const char *folder, const char *hex, struct clime_error *e) {
    char *path = xasprintf("%s/%s.packet", folder, hex), *piece = xmalloc(PIECE_BYTES);
    int fd;
    enum clime_err rc = open_file(path, &fd, e);
    while (!rc && r->n_taken < r->length) {
        uint64_t left = r->length - r->n_taken;
        ssize_t n = pread(fd, piece, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, (off_t)(r->at + r->n_taken));
        if (n < 0 && errno == EINTR) continue;
        if (cancelled(r)) {
            rc = clime_fail(e, CLIME_ERR_ABORTED, "nobody waits for the pull any more");
        } else if (clime_now_us() >= r->f->deadline_us) {
            rc = clime_fail(e, CLIME_ERR_TIMEOUT, "%s: the time is over", path);
        } else if (n <= 0) {
            rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s: %s", path, n < 0 ? strerror(errno) : "it ends too soon");
        } else {
            r->n_taken += (uint64_t)n;
            r->f->n_bytes += (uint64_t)n;
            rc = r->take(r, piece, (size_t)n, e);
        }
    }
    if (fd >= 0) close(fd);
    free(piece);
    free(path);
    return rc;
}

static enum clime_err from_source(struct range *r, const char *source, struct clime_error *e) {
    char hex[65];
    bool url = clime_str_starts(clime_str_of(source), "http");
    clime_packet_hex(r->id, hex);
    r->n_taken = 0;
    r->status = 0;
    r->e = (struct clime_error){0};
    enum clime_err rc = url ? from_url(r, source, hex, e) : from_folder(r, source, hex, e);
    if (!rc && r->n_taken < r->length)
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s breaks off after %" PRIu64 " of %" PRIu64 " bytes",
                        clime_url_shown(source).text, r->n_taken, r->length);
    return rc;
}

/* ---- failover --------------- */

/* True when another source may succeed. */
static bool may_pass(const struct clime_fetch *f, enum clime_err rc) {
    return (rc == CLIME_ERR_UNAVAILABLE || rc == CLIME_ERR_TIMEOUT || rc == CLIME_ERR_INTERNAL ||
            rc == CLIME_ERR_LIMIT || rc == CLIME_ERR_BUSY) &&
           clime_now_us() < f->deadline_us;
}

static void turn_away(struct clime_fetch *f, const struct clime_error *e) {
    LOG_WARN("pulling weights: %s", e->msg);
    f->at = (f->at + 1) % f->n_sources;
    f->n_turned++;
}

static enum clime_err take_head(struct range *r, const char *data, size_t len, struct clime_error *e) {
    (void)e;
    clime_buf_add(r->head, data, len);
    return CLIME_OK;
}

static enum clime_err read_manifest(const struct range *r, const struct clime_packet_shape *s,
                                    struct clime_packet **out, struct clime_error *e) {
    struct clime_sha256 sha;
    uint8_t id[CLIME_PACKET_ID];
    clime_sha256_init(&sha);
    clime_sha256_add(&sha, r->head->data, r->head->len);
    clime_sha256_done(&sha, id);
    if (memcmp(id, r->id, sizeof id))
        return clime_fail(e, CLIME_ERR_INTERNAL, "%s has other bytes than the packet's name says",
                          r->f->sources[r->f->at]);
    return clime_packet_read(r->head->data, r->head->len, s, out, e);
}

enum clime_err clime_fetch_manifest(struct clime_fetch *f, const uint8_t id[CLIME_PACKET_ID],
                                    const struct clime_packet_shape *s, struct clime_packet **out,
                                    struct clime_error *e) {
    struct clime_buf head;
    struct range r = {.id = id, .length = clime_packet_manifest_bytes(s), .take = take_head, .f = f, .head = &head};
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&head, r.length);
    *out = NULL;
    for (int n = 0; n < f->n_sources; n++) {
        clime_buf_clear(&head);
        rc = from_source(&r, f->sources[f->at], e);
        if (!rc) rc = read_manifest(&r, s, out, e);
        if (!rc || !may_pass(f, rc)) break;
        turn_away(f, e);
    }
    clime_buf_free(&head);
    return rc;
}

/* Fills blocks in order; skips empty ones. */
static enum clime_err take_blocks(struct range *r, const char *data, size_t len, struct clime_error *e) {
    while (len > 0) {
        struct clime_packet_block *b = &r->p->blocks[r->block];
        if (b->packed_bytes == 0) {
            r->block++;
            continue;
        }
        size_t left = b->packed_bytes - r->n_filled, n = len < left ? len : left;
        if (!b->packed) b->packed = xmalloc(b->packed_bytes);
        memcpy(b->packed + r->n_filled, data, n);
        r->n_filled += n;
        data += n;
        len -= n;
        if (r->n_filled < b->packed_bytes) return CLIME_OK;
        r->n_filled = 0;
        enum clime_err rc = clime_packet_apply(r->p, r->block, b->packed, r->flat, e);
        if (rc) return rc;
        if (!r->keep) {
            free(b->packed);
            b->packed = NULL;
        }
        r->block++;
    }
    return CLIME_OK;
}

static bool wanted(const struct range *r, int i) {
    return r->p->blocks[i].packed_bytes > 0 && (!r->needed || r->needed[i]);
}

/* Sets the next run of contiguous wanted blocks from r->block on; false at the end. */
static bool next_run(struct range *r) {
    const struct clime_packet *p = r->p;
    while (r->block < p->n_blocks && !wanted(r, r->block)) r->block++;
    if (r->block == p->n_blocks) return false;
    r->at = clime_packet_at(p, r->block);
    r->length = 0;
    for (int i = r->block; i < p->n_blocks && (wanted(r, i) || p->blocks[i].packed_bytes == 0); i++)
        r->length += p->blocks[i].packed_bytes;
    r->n_filled = 0;
    return true;
}

enum clime_err clime_fetch_blocks(struct clime_fetch *f, struct clime_packet *p, const bool *needed, bool keep,
                                  void *flat, struct clime_error *e) {
    struct range r = {.id = p->id, .take = take_blocks, .f = f, .p = p, .needed = needed, .flat = flat, .keep = keep};
    enum clime_err rc = CLIME_OK;
    int n_failed = 0, seen = -1; /* sources that failed at the same block */
    while (next_run(&r)) {
        if (r.block != seen) n_failed = 0;
        seen = r.block;
        rc = from_source(&r, f->sources[f->at], e);
        if (!rc) continue;
        if (!may_pass(f, rc)) return rc;
        turn_away(f, e);
        if (r.block == seen && ++n_failed >= f->n_sources) return rc;
    }
    return CLIME_OK;
}
