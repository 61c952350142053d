/* Source of weight packets (see source.h). Opened with the fleet; the owner's thread publishes a version when the first
 * server needs it, the loop's thread writes bodies, the listener's threads serve packets.
 *
 * Owns a copy of the last version, for the next delta, and the packets: in memory, or as files in a locked folder,
 * deleted once two newer versions exist.
 */
#include "trainer/fleet/source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "common/thread/threadpool.h"
#include "model/packet/shelf.h"

#define THREADS 64 /* of the listener; more than one fan-out of servers */
#define SUFFIX ".packet"
#define LOCK_US 1000000
#define LOCK_LOOK_US 10000
#define HALF ".tmp." /* suffix during writing (common/os/atomic_file.h) */

struct name { /* of a packet, in hex */
    char hex[65];
};

struct names {
    struct name *items;
    int n;
};

struct clime_source {
    struct clime_source_options o;
    char *folder, *url; /* owned; one of the two */
    int lock_fd;        /* of the folder's file, or -1 */
    struct clime_shelf *shelf;
    struct clime_http_server *http;
    struct clime_pool *pool;
    struct clime_packet_shape shape;
    void *last;           /* the last version, of shape; NULL = none */
    int n_deltas;         /* since the last whole packet */
    struct names dropped; /* files to delete at the next version */
    struct clime_source_packet made;
};

static void serve(struct clime_http_request *rq, void *context) {
    clime_shelf_serve(((struct clime_source *)context)->shelf, rq);
}

static const struct clime_http_route routes[] = {
    {.methods = "GET", .path = CLIME_PACKETS_PATH "{id}", .auth = CLIME_HTTP_ADMIN, .handler = serve}, {0}};

/* Whether name is a packet's, complete or interrupted. */
static bool is_ours(const char *name) {
    uint8_t id[CLIME_PACKET_ID];
    const size_t hex = sizeof id * 2, end = strlen(SUFFIX);
    if (strlen(name) < hex + end || !clime_packet_unhex((struct clime_str){name, hex}, id)) return false;
    const char *rest = name + hex + end;
    return !memcmp(name + hex, SUFFIX, end) && (!*rest || !strncmp(rest, HALF, strlen(HALF)));
}

/* Two runs in one folder would delete each other's packets. The kernel releases the lock with the process; a child of a
 * killed trainer may hold it until its exec. */
static enum clime_err lock_folder(struct clime_source *s, struct clime_error *e) {
    int64_t limit_us = clime_now_us() + LOCK_US;
    enum clime_err rc = clime_make_dirs(s->o.folder, e);
    if (rc) return rc;
    char *path = xasprintf("%s/.lock", s->o.folder);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (s->lock_fd < 0) rc = clime_fail(e, CLIME_ERR_IO, "cannot create %s: %s", path, strerror(errno));
    free(path);
    while (!rc && flock(s->lock_fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK) {
            LOG_WARN("cannot lock %s (%s): no other run may publish there", s->o.folder, strerror(errno));
            break;
        }
        if (clime_now_us() > limit_us)
            rc = clime_fail(e, CLIME_ERR_BUSY, "another clime-train publishes in %s (--update-weight-disk-dir)",
                            s->o.folder);
        clime_sleep_us(LOCK_LOOK_US);
    }
    return rc;
}

/* Deletes a predecessor's files. */
static enum clime_err empty_folder(const char *folder, struct clime_error *e) {
    DIR *d = opendir(folder);
    if (!d) return clime_fail(e, CLIME_ERR_IO, "cannot read the folder %s", folder);
    for (const struct dirent *at; (at = readdir(d));) {
        if (is_ours(at->d_name)) unlinkat(dirfd(d), at->d_name, 0);
    }
    closedir(d);
    return CLIME_OK;
}

static enum clime_err listen_at(struct clime_source *s, struct clime_error *e) {
    const struct clime_http_options http = {
        .host = s->o.host, .n_threads = THREADS, .max_body = 4096, .api_key = s->o.key, .routes = routes, .context = s};
    if (!strcmp(s->o.host, "0.0.0.0") || !strcmp(s->o.host, "::")) /* servers would connect to their own host */
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--update-weight-host %s: name the address that servers reach this host at", s->o.host);
    enum clime_err rc = clime_http_server_start(&http, &s->http, e);
    if (rc) return clime_error_prefix(e, "--update-weight-host");
    s->url = xasprintf("http://%s:%d", s->o.host, clime_http_server_port(s->http));
    LOG_INFO("weights: servers pull them from %s", s->url);
    return CLIME_OK;
}

enum clime_err clime_source_open(const struct clime_source_options *o, struct clime_source **out,
                                 struct clime_error *e) {
    struct clime_source *s = *out = xcalloc(1, sizeof *s);
    s->o = *o;
    s->lock_fd = -1;
    s->shelf = clime_shelf_new(o->chain, UINT64_MAX);
    s->pool = clime_pool_new(0);
    if (!o->folder) return listen_at(s, e);
    enum clime_err rc = lock_folder(s, e);
    if (!rc) rc = empty_folder(o->folder, e);
    s->folder = rc ? NULL : realpath(o->folder, NULL);
    if (!rc && !s->folder) rc = clime_fail(e, CLIME_ERR_IO, "cannot find the folder %s", o->folder);
    return rc;
}

void clime_source_close(struct clime_source *s) {
    if (!s) return;
    clime_http_server_stop(s->http);
    if (s->http) LOG_INFO("weights: %" PRIu64 " bytes were handed out", clime_shelf_handed_bytes(s->shelf));
    clime_shelf_free(s->shelf);
    clime_pool_free(s->pool);
    if (s->lock_fd >= 0) close(s->lock_fd);
    free(s->dropped.items);
    free(s->last);
    free(s->folder);
    free(s->url);
    free(s);
}

/* ---- files ---- */

static char *path_of(const struct clime_source *s, const char *hex) {
    return xasprintf("%s/%s" SUFFIX, s->folder, hex);
}

static void list(void *arg, const struct clime_packet *p) {
    struct names *l = arg;
    l->items = xrealloc(l->items, (size_t)(l->n + 1) * sizeof *l->items);
    clime_packet_hex(p->id, l->items[l->n++].hex);
}

static bool has(const struct names *l, const char *hex) {
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].hex, hex)) return true;
    return false;
}

static enum clime_err write_file(const struct clime_source *s, const struct clime_packet *p, struct clime_error *e) {
    char hex[65];
    struct clime_atomic_file f;
    const uint8_t *piece;
    clime_packet_hex(p->id, hex);
    char *path = path_of(s, hex);
    enum clime_err rc = clime_atomic_open(&f, path, e);
    free(path);
    if (rc) return rc;
    uint64_t at = 0;
    for (size_t n; !rc && (n = clime_packet_piece(p, at, &piece)) > 0; at += n)
        rc = clime_atomic_write(&f, piece, n, e);
    return clime_atomic_close(&f, rc, e);
}

/* Puts p on the shelf. In a folder its bytes are only in its file, and files dropped by the previous version are
 * deleted; servers still reading those dropped now can finish. */
static enum clime_err put(struct clime_source *s, struct clime_packet *p, struct clime_error *e) {
    struct names before = {0}, after = {0}, gone = {0};
    enum clime_err rc = s->folder ? write_file(s, p, e) : CLIME_OK;
    if (rc) {
        clime_packet_free(p);
        return rc;
    }
    for (int i = 0; s->folder && i < p->n_blocks; i++) {
        free(p->blocks[i].packed);
        p->blocks[i].packed = NULL;
    }
    clime_shelf_each(s->shelf, list, &before);
    clime_shelf_put(s->shelf, p);
    clime_shelf_each(s->shelf, list, &after);
    for (int i = 0; s->folder && i < before.n; i++) {
        if (has(&after, before.items[i].hex)) continue;
        gone.items = xrealloc(gone.items, (size_t)(gone.n + 1) * sizeof *gone.items);
        gone.items[gone.n++] = before.items[i];
    }
    for (int i = 0; i < s->dropped.n; i++) {
        char *path = path_of(s, s->dropped.items[i].hex);
        if (!has(&after, s->dropped.items[i].hex)) unlink(path);
        free(path);
    }
    free(s->dropped.items);
    s->dropped = gone;
    free(before.items);
    free(after.items);
    return CLIME_OK;
}

/* ---- a version ---- */

enum clime_err clime_source_publish(struct clime_source *s, const struct clime_layout *l, int64_t version,
                                    const void *flat, struct clime_error *e) {
    size_t bytes = (size_t)l->bytes;
    int64_t t0 = clime_now_us();
    enum clime_err rc = CLIME_OK;
    s->shape = clime_packet_shape_of(l);
    bool first = !s->last || s->made.version == version;
    if (!first) {
        struct clime_packet *p = clime_packet_make(s->pool, &s->shape, s->made.version, s->last, version, flat);
        s->made =
            (struct clime_source_packet){version, clime_packet_bytes(p), (double)p->n_changed / (double)s->shape.n};
        LOG_INFO("weights of version %" PRId64
                 ": %.3g %% of the elements changed, %.3g %% of the bytes, packed in %.3f s",
                 version, 100 * s->made.density, 100 * (double)s->made.bytes / (double)bytes,
                 (double)(clime_now_us() - t0) / 1e6);
        rc = put(s, p, e);
        s->n_deltas++;
    }
    if (!rc && (first || s->n_deltas >= s->o.chain)) {
        struct clime_packet *p = clime_packet_make(s->pool, &s->shape, -1, NULL, version, flat);
        if (first) s->made = (struct clime_source_packet){version, clime_packet_bytes(p), 1};
        rc = put(s, p, e);
        s->n_deltas = 0;
    }
    if (rc) {
        free(s->last); /* the next packet is whole */
        s->last = NULL;
        return rc;
    }
    if (!s->last) s->last = xaligned(64, bytes);
    memcpy(s->last, flat, bytes);
    return CLIME_OK;
}

static void name_packet(void *arg, const struct clime_packet *p) {
    struct clime_jw *w = arg;
    char hex[65];
    clime_packet_hex(p->id, hex);
    clime_jw_object(w);
    clime_jw_put_int(w, "version", p->version);
    if (p->base >= 0) clime_jw_put_int(w, "base", p->base);
    clime_jw_put_strz(w, "id", hex);
    clime_jw_close(w);
}

void clime_source_body(struct clime_source *s, int64_t version, const char *label, const char *relay, bool keep_kv,
                       int64_t timeout_us, struct clime_buf *out) {
    struct clime_jw w;
    clime_buf_init(out, (size_t)1 << 20);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "version", version);
    clime_jw_put_strz(&w, "weight_version", label);
    clime_jw_key(&w, "packets");
    clime_jw_array(&w);
    clime_shelf_each(s->shelf, name_packet, &w);
    clime_jw_close(&w);
    clime_jw_key(&w, "sources");
    clime_jw_array(&w);
    if (relay) clime_jw_strz(&w, relay);
    clime_jw_strz(&w, s->folder ? s->folder : s->url);
    clime_jw_close(&w);
    clime_jw_put_double(&w, "timeout", (double)timeout_us / 1e6);
    clime_jw_put_bool(&w, "flush_cache", !keep_kv);
    clime_jw_close(&w);
}

uint64_t clime_source_bytes(struct clime_source *s) {
    return clime_shelf_bytes(s->shelf);
}

bool clime_source_is_folder(const struct clime_source *s) {
    return s->folder != NULL;
}

struct clime_source_packet clime_source_last(const struct clime_source *s) {
    return s->made;
}
