/* Bounded cache of packets served over HTTP. Publishers and pullers call put, HTTP workers serve. Owns the packets.
 *
 * Invariant: a removed packet is freed only after its last reader has released it; paths are looked up in the list and
 * never name a file.
 */
#include "model/packet/shelf.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define PIECE_BYTES ((size_t)1 << 20) /* of one write of a stream */

struct copy {
    struct clime_packet *p;
    int n_readers;
    bool on_shelf;
    struct copy *next; /* newer */
};

struct clime_shelf {
    pthread_mutex_t lock;
    struct copy *first; /* oldest */
    int most_deltas;
    uint64_t most_bytes, n_bytes, n_handed; /* under lock, like everything here */
};

struct clime_shelf *clime_shelf_new(int most_deltas, uint64_t most_bytes) {
    struct clime_shelf *s = xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->most_deltas = most_deltas;
    s->most_bytes = most_bytes;
    return s;
}

static void free_copy(struct copy *c) {
    clime_packet_free(c->p);
    free(c);
}

void clime_shelf_free(struct clime_shelf *s) {
    if (!s) return;
    while (s->first) {
        struct copy *c = s->first;
        CHECK(c->n_readers == 0);
        s->first = c->next;
        free_copy(c);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Removes c; freed once it has no readers. Under the lock. */
static void take_off(struct clime_shelf *s, struct copy *c) {
    struct copy **at = &s->first;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    s->n_bytes -= clime_packet_bytes(c->p);
    c->on_shelf = false;
    if (c->n_readers == 0) free_copy(c);
}

/* The oldest packet above a limit; NULL: none. Under the lock. */
static struct copy *too_many(const struct clime_shelf *s) {
    struct copy *whole = NULL, *delta = NULL;
    int n_whole = 0, n_deltas = 0;
    for (struct copy *c = s->first; c; c = c->next) {
        bool is_whole = c->p->base < 0;
        if (is_whole && n_whole++ == 0) whole = c;
        if (!is_whole && n_deltas++ == 0) delta = c;
    }
    if (n_whole > 1) return whole;
    if (n_deltas > s->most_deltas) return delta;
    return s->n_bytes > s->most_bytes ? s->first : NULL;
}

void clime_shelf_put(struct clime_shelf *s, struct clime_packet *p) {
    struct copy *c = xcalloc(1, sizeof *c), **at = &s->first;
    c->p = p;
    c->on_shelf = true;
    pthread_mutex_lock(&s->lock);
    while (*at && memcmp((*at)->p->id, p->id, CLIME_PACKET_ID)) at = &(*at)->next;
    if (*at || clime_packet_bytes(p) > s->most_bytes) {
        free_copy(c);
    } else {
        *at = c;
        s->n_bytes += clime_packet_bytes(p);
        for (struct copy *old; (old = too_many(s));) take_off(s, old);
    }
    pthread_mutex_unlock(&s->lock);
}

void clime_shelf_each(struct clime_shelf *s, void (*fn)(void *arg, const struct clime_packet *p), void *arg) {
    pthread_mutex_lock(&s->lock);
    for (const struct copy *c = s->first; c; c = c->next) fn(arg, c->p);
    pthread_mutex_unlock(&s->lock);
}

static uint64_t locked(struct clime_shelf *s, const uint64_t *what) {
    pthread_mutex_lock(&s->lock);
    uint64_t n = *what;
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t clime_shelf_bytes(struct clime_shelf *s) {
    return locked(s, &s->n_bytes);
}

uint64_t clime_shelf_handed_bytes(struct clime_shelf *s) {
    return locked(s, &s->n_handed);
}

void clime_packet_hex(const uint8_t id[CLIME_PACKET_ID], char out[65]) {
    clime_sha256_hex(id, out);
}

bool clime_packet_unhex(struct clime_str hex, uint8_t id[CLIME_PACKET_ID]) {
    if (hex.len != (size_t)2 * CLIME_PACKET_ID) return false;
    for (int i = 0; i < CLIME_PACKET_ID; i++) {
        int high = clime_hex_digit(hex.ptr[2 * i]), low = clime_hex_digit(hex.ptr[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        id[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Under the lock. */
static struct copy *find(const struct clime_shelf *s, const uint8_t id[CLIME_PACKET_ID]) {
    struct copy *c = s->first;
    while (c && memcmp(c->p->id, id, CLIME_PACKET_ID)) c = c->next;
    return c;
}

bool clime_shelf_has(struct clime_shelf *s, const uint8_t id[CLIME_PACKET_ID]) {
    pthread_mutex_lock(&s->lock);
    bool has = find(s, id) != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

/* ---- serving ---- */

static struct copy *take(struct clime_shelf *s, const uint8_t id[CLIME_PACKET_ID]) {
    pthread_mutex_lock(&s->lock);
    struct copy *c = find(s, id);
    if (c) c->n_readers++;
    pthread_mutex_unlock(&s->lock);
    return c;
}

static void let_go(struct clime_shelf *s, struct copy *c, uint64_t n_sent) {
    pthread_mutex_lock(&s->lock);
    s->n_handed += n_sent;
    if (--c->n_readers == 0 && !c->on_shelf) free_copy(c);
    pthread_mutex_unlock(&s->lock);
}

static enum clime_err read_number(const struct clime_http_request *rq, const char *name, uint64_t *out,
                                  struct clime_error *e) {
    char text[24], *end;
    bool given;
    if (clime_http_query(rq, name, text, sizeof text, &given, e) || !given) return e->code;
    errno = 0;
    uint64_t x = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno)
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be a number of bytes", name);
    *out = x;
    return CLIME_OK;
}

void clime_shelf_serve(struct clime_shelf *s, struct clime_http_request *rq) {
    uint8_t id[CLIME_PACKET_ID];
    struct clime_error e = {0};
    uint64_t at = 0, left = UINT64_MAX, n_sent = 0;
    if (read_number(rq, "at", &at, &e) || read_number(rq, "length", &left, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    struct copy *c = clime_packet_unhex(clime_http_param(rq), id) ? take(s, id) : NULL;
    if (!c) {
        clime_http_reply_error(rq, 404, "no packet of this name is here, or it is not here any more");
        return;
    }
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "application/octet-stream", NULL);
    const uint8_t *piece;
    bool good = true;
    for (size_t n; good && left > 0 && (n = clime_packet_piece(c->p, at, &piece)) > 0;
         at += n, left -= n, n_sent += n) {
        if (n > left) n = (size_t)left;
        if (n > PIECE_BYTES) n = PIECE_BYTES;
        good = clime_http_stream_write(st, piece, n);
    }
    clime_http_stream_end(st, good);
    let_go(s, c, n_sent);
}
