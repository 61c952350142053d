/* Transport of links through memory that peers map (CUDA IPC): copy engines move the bytes of a pair of GPUs, without
 * disturbing computation.
 *
 * Each GPU has SLOTS places of PIECE bytes for every other rank. The sender copies a piece into the receiver's next
 * place, the receiver copies it to its destination. Two words per ordered pair, in host memory shared by all ranks,
 * count the pieces sent and taken; streams write them and wait for them, without the host. A rank sends on a stream of
 * its own and receives on that of the links, which waits for the other at the exchange's end.
 *
 * Bytes for a window need no place: they are copied to their destination once the receiver has reached the exchange
 * (`ready`), and `put` signals their arrival. These are two more words per pair, which count exchanges. Copies from
 * places run on a GPU's multiprocessors, whatever the driver is asked for, so they wait for any kernel that fills
 * these; a copy to a peer uses a copy engine.
 *
 * Invariant: taken <= sent <= taken + SLOTS. It cannot deadlock: in every exchange all ranks proceed by piece number,
 * then by rank, in sending and in taking; piece k is sent when k - SLOTS was taken, and taken when it was sent.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cuda/links.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/group/memory.h"
#include "kernels/runs.h"
}

#define PIECE ((size_t)32 << 20)
#define PAGE ((size_t)4096)
enum { SLOTS = 2 };

struct pair {
    alignas(64) volatile uint32_t sent;
    alignas(64) volatile uint32_t taken;
    alignas(64) volatile uint32_t put;
    alignas(64) volatile uint32_t ready;
};

struct pieces {
    uint32_t out[CLIME_GROUP_MAX], in[CLIME_GROUP_MAX];         /* to and from a rank */
    uint32_t put_out[CLIME_GROUP_MAX], put_in[CLIME_GROUP_MAX]; /* exchanges that put something there; here */
};

struct window {
    char *own, *peers[CLIME_GROUP_MAX]; /* mapped[]: start of the allocations that contain these */
    void *mapped[CLIME_GROUP_MAX];
    size_t bytes;
};

struct clime_link_mapped {
    struct clime_dev *d;
    int rank, world;
    cudaStream_t out;
    cudaEvent_t sent;
    struct pair *pairs, *on_device; /* [world][world] from, to; the same memory as host and GPU address it */
    size_t bytes;                   /* of that memory */
    bool registered;
    char *own;                    /* the places here */
    char *peers[CLIME_GROUP_MAX]; /* the others' places, mapped */
    struct window window[CLIME_LINKS_WINDOWS];
    int n_windows;
    bool unmapped;                        /* a window could not be mapped: puts use places too */
    struct pieces n, after[LINKS_QUEUED]; /* queued so far; and by the end of an exchange */
};

struct card { /* sent to the other ranks */
    uint8_t handle[CLIME_SHARE_BYTES];
    uint64_t offset, bytes; /* of a window in its allocation */
    struct clime_error why; /* its failure; code CLIME_OK = none */
};

static size_t room(int world) {
    return (size_t)(world - 1) * SLOTS * PIECE;
}

size_t clime_link_mapped_bytes(int world) {
    return room(world);
}

/* Rank `to`'s place for a piece from `from`. */
static char *place(char *places, int to, int from, uint32_t piece) {
    return places + ((size_t)(from - (from > to)) * SLOTS + piece % SLOTS) * PIECE;
}

static size_t index_of(const struct clime_link_mapped *m, int from, int to) {
    return (size_t)from * (size_t)m->world + (size_t)to;
}

/* ---- open and close ---- */

static enum clime_err cannot(struct clime_error *e, cudaError_t rc, const char *what) {
    cudaGetLastError();
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s: %s", what, cudaGetErrorString(rc));
}

static enum clime_err open_own(struct clime_link_mapped *m, struct card *c, struct clime_error *e) {
    cudaError_t rc = cudaHostRegister(m->pairs, m->bytes, cudaHostRegisterMapped);
    if (rc != cudaSuccess) return cannot(e, rc, "the GPU does not take shared host memory");
    m->registered = true;
    rc = cudaHostGetDevicePointer((void **)&m->on_device, m->pairs, 0);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&m->out, cudaStreamNonBlocking);
    if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(&m->sent, cudaEventDisableTiming);
    if (rc != cudaSuccess) return cannot(e, rc, "making a stream");
    enum clime_err err = clime_cuda_alloc_shared(m->d, room(m->world), "places of links", (void **)&m->own, e);
    return err ? err : clime_cuda_share_export(m->d, m->own, c->handle, e);
}

static enum clime_err open_peers(struct clime_link_mapped *m, const struct card *cards, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int r = 0; r < m->world && !rc; r++) {
        bool same_unit;
        if (r != m->rank)
            rc = clime_cuda_share_open(m->d, cards[r].handle, room(m->world), &same_unit, (void **)&m->peers[r], e);
    }
    return rc;
}

/* Exchanges all cards; the first rank that cannot, and why. */
static enum clime_err tell(const struct clime_link_mapped *m, struct clime_group *g, struct card *cards, bool *all_can,
                           struct clime_error *why, struct clime_error *e) {
    size_t from[CLIME_GROUP_MAX + 1];
    for (int r = 0; r <= m->world; r++) from[r] = (size_t)r * sizeof *cards;
    enum clime_err rc = clime_group_share(g, "opening links", cards, from, e);
    *all_can = true;
    for (int r = m->world - 1; r >= 0 && !rc; r--) {
        if (!cards[r].why.code) continue;
        *all_can = false;
        *why = cards[r].why;
        clime_error_prefix(why, "%s", clime_group_name(g, r));
    }
    return rc;
}

enum clime_err clime_link_mapped_open(struct clime_dev *d, struct clime_group *g, struct clime_link_mapped **out,
                                      struct clime_error *why, struct clime_error *e) {
    struct clime_link_mapped *m = (struct clime_link_mapped *)xcalloc(1, sizeof *m);
    m->d = d;
    m->rank = clime_group_rank(g);
    m->world = clime_group_world(g);
    m->bytes = (sizeof(struct pair) * (size_t)m->world * (size_t)m->world + PAGE - 1) / PAGE * PAGE;
    struct card *cards = (struct card *)xcalloc((size_t)m->world, sizeof *cards), *own = &cards[m->rank];
    bool all_can = false;
    enum clime_err rc = clime_group_memory(g, m->bytes, (void **)&m->pairs, e);
    if (!rc) {
        open_own(m, own, &own->why);
        rc = tell(m, g, cards, &all_can, why, e);
    }
    if (!rc && all_can) {
        open_peers(m, cards, &own->why);
        rc = tell(m, g, cards, &all_can, why, e);
    }
    free(cards);
    if (rc || !all_can)
        clime_link_mapped_close(m);
    else
        *out = m;
    return rc;
}

/* Handle and offset of a window of this rank. */
static enum clime_err show_window(struct clime_link_mapped *m, char *at, size_t bytes, struct card *own,
                                  struct clime_error *e) {
    char *base;
    enum clime_err rc = clime_cuda_share_base(m->d, at, &base, e);
    if (rc) return rc;
    own->offset = (uint64_t)(at - base);
    own->bytes = bytes;
    return clime_cuda_share_export(m->d, base, own->handle, e);
}

static enum clime_err open_window(struct clime_link_mapped *m, struct window *w, const struct card *cards,
                                  struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    bool same_unit;
    for (int r = 0; r < m->world && !rc; r++) {
        if (r == m->rank) continue;
        if (cards[r].bytes != w->bytes)
            return clime_fail(e, CLIME_ERR_INTERNAL, "a window of %zu bytes is one of %llu on rank %d", w->bytes,
                              (unsigned long long)cards[r].bytes, r);
        rc = clime_cuda_share_open(m->d, cards[r].handle, cards[r].offset + w->bytes, &same_unit, &w->mapped[r], e);
        if (!rc) w->peers[r] = (char *)w->mapped[r] + cards[r].offset;
    }
    return rc;
}

enum clime_err clime_link_mapped_window(struct clime_link_mapped *m, struct clime_group *g, void *at, size_t bytes,
                                        struct clime_error *why, struct clime_error *e) {
    if (m->unmapped) return CLIME_OK; /* on all ranks */
    struct card *cards = (struct card *)xcalloc((size_t)m->world, sizeof *cards), *own = &cards[m->rank];
    struct window *w = &m->window[m->n_windows++];
    bool all_can = false;
    w->own = (char *)at;
    w->bytes = bytes;
    show_window(m, w->own, bytes, own, &own->why);
    enum clime_err rc = tell(m, g, cards, &all_can, why, e);
    if (!rc && all_can) {
        open_window(m, w, cards, &own->why);
        rc = tell(m, g, cards, &all_can, why, e);
    }
    if (!all_can) m->unmapped = true;
    free(cards);
    return rc;
}

void clime_link_mapped_close(struct clime_link_mapped *m) {
    if (!m) return;
    for (int i = 0; i < m->n_windows; i++)
        for (int r = 0; r < m->world; r++)
            if (m->window[i].mapped[r]) cudaIpcCloseMemHandle(m->window[i].mapped[r]);
    for (int r = 0; r < m->world; r++)
        if (m->peers[r]) cudaIpcCloseMemHandle(m->peers[r]);
    cudaFree(m->own);
    if (m->sent) cudaEventDestroy(m->sent);
    if (m->out) cudaStreamDestroy(m->out);
    if (m->registered) cudaHostUnregister(m->pairs);
    if (m->pairs) munmap(m->pairs, m->bytes);
    free(m);
}

/* ---- queueing ---- */

struct cursor { /* progress in queueing the moves to or from a rank */
    int move;
    size_t at;
};

/* Queues the next piece from this rank to another: false when there is none. */
static bool send_piece(struct clime_link_mapped *m, int to, const struct clime_move *moves, int n, struct cursor *c) {
    struct clime_dev *d = m->d;
    struct pair *pair = &m->on_device[index_of(m, m->rank, to)];
    uint32_t piece = m->n.out[to];
    size_t filled = 0;
    for (; c->move < n && filled < PIECE; c->move++, c->at = 0) {
        const struct clime_move *v = &moves[c->move];
        size_t rest = v->bytes - c->at, bytes = rest < PIECE - filled ? rest : PIECE - filled;
        if (v->rank != to || !rest) continue;
        if (!filled) clime_link_wait(d, m->out, &pair->taken, piece + 1 - SLOTS);
        CU(d, cudaMemcpyAsync(place(m->peers[to], to, m->rank, piece) + filled, (const char *)v->at + c->at, bytes,
                              cudaMemcpyDeviceToDevice, m->out));
        filled += bytes;
        c->at += bytes;
        if (bytes < rest) break;
    }
    if (filled) clime_link_write(d, m->out, &pair->sent, m->n.out[to] = piece + 1);
    return filled > 0;
}

static bool take_piece(struct clime_link_mapped *m, cudaStream_t in, int from, const struct clime_move *moves, int n,
                       struct cursor *c) {
    struct clime_dev *d = m->d;
    struct pair *pair = &m->on_device[index_of(m, from, m->rank)];
    uint32_t piece = m->n.in[from];
    size_t filled = 0;
    for (; c->move < n && filled < PIECE; c->move++, c->at = 0) {
        const struct clime_move *v = &moves[c->move];
        size_t rest = v->bytes - c->at, bytes = rest < PIECE - filled ? rest : PIECE - filled;
        if (v->rank != from || !rest) continue;
        if (!filled) clime_link_wait(d, in, &pair->sent, piece + 1);
        CU(d, cudaMemcpyAsync((char *)v->at + c->at, place(m->own, m->rank, from, piece) + filled, bytes,
                              cudaMemcpyDeviceToDevice, in));
        filled += bytes;
        c->at += bytes;
        if (bytes < rest) break;
    }
    if (filled) clime_link_write(d, in, &pair->taken, m->n.in[from] = piece + 1);
    return filled > 0;
}

void clime_link_mapped_queue(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                             const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                             int n_receives) {
    struct clime_dev *d = m->d;
    struct cursor sent[CLIME_GROUP_MAX] = {}, taken[CLIME_GROUP_MAX] = {};
    CU(d, cudaStreamWaitEvent(m->out, forked, 0));
    for (bool more = true; more;) {
        more = false;
        for (int k = 1; k < m->world; k++) {
            int to = (m->rank + k) % m->world, from = (m->rank + m->world - k) % m->world;
            more |= send_piece(m, to, sends, n_sends, &sent[to]);
            more |= take_piece(m, in, from, receives, n_receives, &taken[from]);
        }
    }
    m->after[number % LINKS_QUEUED] = m->n;
    CU(d, cudaEventRecord(m->sent, m->out));
    CU(d, cudaStreamWaitEvent(in, m->sent, 0));
}

/* The address on a rank of what this rank has at `to`, in a window. */
static char *there(const struct clime_link_mapped *m, int rank, const void *to) {
    const struct window *w = m->window;
    while (!((const char *)to >= w->own && (const char *)to < w->own + w->bytes)) w++;
    return w->peers[rank] + ((const char *)to - w->own);
}

static size_t bytes_of(const struct clime_move *moves, int n, int rank) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) sum += moves[i].rank == rank ? moves[i].bytes : 0;
    return sum;
}

/* Starting a copy costs an engine as much as some MB, so rows at even distances (a rank's share of each expert) are one
 * copy. */
static void put_run(struct clime_link_mapped *m, const struct clime_run *r) {
    struct clime_dev *d = m->d;
    if (r->n == 1)
        CU(d, cudaMemcpyAsync(r->at[0], r->at[1], r->bytes, cudaMemcpyDeviceToDevice, m->out));
    else
        CU(d, cudaMemcpy2DAsync(r->at[0], r->step[0], r->at[1], r->step[1], r->bytes, (size_t)r->n,
                                cudaMemcpyDeviceToDevice, m->out));
}

static void put_all(struct clime_link_mapped *m, int to, const struct clime_move *moves, int n) {
    struct clime_dev *d = m->d;
    struct pair *pair = &m->on_device[index_of(m, m->rank, to)];
    const uint32_t number = ++m->n.put_out[to];
    struct clime_runs runs = {};
    struct clime_run run;
    clime_link_wait(d, m->out, &pair->ready, number);
    for (int i = 0; i < n; i++) {
        if (moves[i].rank != to || !moves[i].bytes) continue;
        const struct clime_run piece = {moves[i].bytes, 1, 2, {there(m, to, moves[i].to), (char *)moves[i].at}};
        if (clime_runs_add(&runs, &piece, &run)) put_run(m, &run);
    }
    while (clime_runs_end(&runs, &run)) put_run(m, &run);
    clime_link_write(d, m->out, &pair->put, number);
}

void clime_link_mapped_put(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                           const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                           int n_receives) {
    struct clime_dev *d = m->d;
    if (m->unmapped) {
        clime_link_mapped_queue(m, number, in, forked, sends, n_sends, receives, n_receives);
        return;
    }
    CU(d, cudaStreamWaitEvent(m->out, forked, 0));
    for (int k = 1; k < m->world; k++) {
        const int from = (m->rank + m->world - k) % m->world;
        if (bytes_of(receives, n_receives, from))
            clime_link_write(d, in, &m->on_device[index_of(m, from, m->rank)].ready, ++m->n.put_in[from]);
    }
    for (int k = 1; k < m->world; k++) {
        const int to = (m->rank + k) % m->world;
        if (bytes_of(sends, n_sends, to)) put_all(m, to, sends, n_sends);
    }
    for (int k = 1; k < m->world; k++) {
        const int from = (m->rank + m->world - k) % m->world;
        if (bytes_of(receives, n_receives, from))
            clime_link_wait(d, in, &m->on_device[index_of(m, from, m->rank)].put, m->n.put_in[from]);
    }
    m->after[number % LINKS_QUEUED] = m->n;
    CU(d, cudaEventRecord(m->sent, m->out));
    CU(d, cudaStreamWaitEvent(in, m->sent, 0));
}

/* ---- progress ---- */

uint64_t clime_link_mapped_progress(const struct clime_link_mapped *m) {
    uint64_t sum = 0;
    for (int r = 0; r < m->world; r++) {
        const struct pair *to = &m->pairs[index_of(m, m->rank, r)], *from = &m->pairs[index_of(m, r, m->rank)];
        sum += (uint64_t)to->sent + to->taken + from->sent + from->taken;
        sum += (uint64_t)to->put + to->ready + from->put + from->ready;
    }
    return sum;
}

int clime_link_mapped_awaited(const struct clime_link_mapped *m, uint32_t number) {
    const struct pieces *after = &m->after[number % LINKS_QUEUED];
    /* first a rank that has not come: what a rank puts on the others is queued after what it puts on that one */
    for (int r = 0; r < m->world; r++) {
        const struct pair *to = &m->pairs[index_of(m, m->rank, r)];
        if (r != m->rank && (int32_t)(to->ready - after->put_out[r]) < 0) return r;
    }
    for (int r = 0; r < m->world; r++) {
        const struct pair *from = &m->pairs[index_of(m, r, m->rank)];
        if (r != m->rank && from->sent == from->taken && from->taken != after->in[r]) return r;
        if (r != m->rank && from->ready == after->put_in[r] && from->put != after->put_in[r]) return r;
    }
    for (int r = 0; r < m->world; r++) {
        const struct pair *to = &m->pairs[index_of(m, m->rank, r)];
        if (r != m->rank && to->taken != after->out[r]) return r;
    }
    return -1;
}

/* Only this rank reads what is written here; its former writer may write again, which ends when it is lost. */
void clime_link_mapped_release(struct clime_link_mapped *m) {
    for (int r = 0; r < m->world; r++) {
        m->pairs[index_of(m, r, m->rank)].sent = m->n.in[r];
        m->pairs[index_of(m, m->rank, r)].taken = m->n.out[r];
        m->pairs[index_of(m, r, m->rank)].put = m->n.put_in[r];
        m->pairs[index_of(m, m->rank, r)].ready = m->n.put_out[r];
    }
}

bool clime_link_mapped_idle(const struct clime_link_mapped *m) {
    return cudaStreamQuery(m->out) != cudaErrorNotReady;
}
