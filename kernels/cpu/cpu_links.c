/* Links between CPU ranks of one host: a ring buffer in shared memory for every ordered pair of ranks.
 *
 * Called by the owner of the group; owns the mapping. A ring has one writer and one reader, each with its own counter.
 * A rank that cannot progress sleeps on its futex, its bell, which the others wake when they have moved its bytes; it
 * also wakes after some ms to check for lost ranks. It never spins: ranks may share cores.
 *
 * Invariant: head - tail <= RING bytes are in a ring, written before head moved and read before tail does.
 */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/group/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/links.h"

#define RING ((size_t)1 << 20)
#define NAP_MS 20

struct bell {
    _Alignas(64) _Atomic uint32_t rung; /* the futex */
    _Atomic uint32_t asleep;
};

struct ring {
    _Alignas(64) _Atomic uint64_t head; /* bytes written so far, over all exchanges */
    _Alignas(64) _Atomic uint64_t tail; /* bytes read */
    _Alignas(64) char bytes[RING];
};

struct cpu_links {
    struct clime_links head;
    size_t bytes;        /* of the mapping */
    struct bell *bell;   /* [world] */
    struct ring *ring;   /* [world][world] from, to */
    int64_t answered_us; /* last poll for rank 0's question */
};

static struct ring *ring_of(const struct cpu_links *l, int from, int to) {
    return &l->ring[(size_t)from * (size_t)l->head.world + (size_t)to];
}

size_t clime_cpu_links_bytes(int world) { /* a rank's share of the total */
    return sizeof(struct bell) + (size_t)world * sizeof(struct ring);
}

enum clime_err clime_cpu_links_open(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                    struct clime_error *e) {
    if (!clime_group_one_host(g))
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "ranks on CPUs share memory, so all must run on one host and see each other's processes");
    struct cpu_links *l = xcalloc(1, sizeof *l);
    size_t n = (size_t)clime_group_world(g);
    void *at;
    l->head = (struct clime_links){clime_dev_info(d)->ops, d, g, "shared memory", clime_group_rank(g), (int)n};
    l->bytes = n * sizeof *l->bell + n * n * sizeof *l->ring;
    enum clime_err rc = clime_group_memory(g, l->bytes, &at, e);
    if (rc) {
        free(l);
        return rc;
    }
    l->bell = at;
    l->ring = (struct ring *)(void *)((char *)at + n * sizeof *l->bell);
    *out = &l->head;
    return CLIME_OK;
}

void clime_cpu_links_close(struct clime_links *links) {
    struct cpu_links *l = (struct cpu_links *)(void *)links;
    munmap(l->bell, l->bytes);
    free(l);
}

/* ---- sleeping ---- */

static void wake(struct bell *b) {
    atomic_fetch_add(&b->rung, 1);
    if (atomic_load(&b->asleep)) syscall(SYS_futex, &b->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Waits until it is rung after `seen` was read, or for a nap. */
static void nap(struct bell *b, uint32_t seen) {
    const struct timespec t = {.tv_nsec = NAP_MS * 1000000L};
    atomic_store(&b->asleep, 1);
    if (atomic_load(&b->rung) == seen) syscall(SYS_futex, &b->rung, FUTEX_WAIT, seen, &t, NULL, 0);
    atomic_store(&b->asleep, 0);
}

/* ---- moving ---- */

/* Moves as much of [*done, bytes) as the ring has room or data for; true when any was moved. */
static bool push(struct ring *r, const struct clime_move *m, size_t *done) {
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed), tail = atomic_load(&r->tail);
    size_t room = RING - (size_t)(head - tail), n = m->bytes - *done < room ? m->bytes - *done : room;
    size_t at = (size_t)(head % RING), first = n < RING - at ? n : RING - at;
    if (!n) return false;
    memcpy(r->bytes + at, (const char *)m->at + *done, first);
    memcpy(r->bytes, (const char *)m->at + *done + first, n - first);
    *done += n;
    atomic_store(&r->head, head + n);
    return true;
}

static bool pull(struct ring *r, const struct clime_move *m, size_t *done) {
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), head = atomic_load(&r->head);
    size_t there = (size_t)(head - tail), n = m->bytes - *done < there ? m->bytes - *done : there;
    size_t at = (size_t)(tail % RING), first = n < RING - at ? n : RING - at;
    if (!n) return false;
    memcpy((char *)m->at + *done, r->bytes + at, first);
    memcpy((char *)m->at + *done + first, r->bytes, n - first);
    *done += n;
    atomic_store(&r->tail, tail + n);
    return true;
}

struct side { /* this rank's sends, or its receives */
    const struct clime_move *move;
    size_t *done; /* [n] bytes of each done */
    int n;
    bool out;
};

/* Moves what it can; per direction only the first unfinished move, since they share a ring. */
static bool advance(struct cpu_links *l, const struct side *s, bool *all) {
    bool moved = false, busy[CLIME_GROUP_MAX] = {false};
    *all = true;
    for (int i = 0; i < s->n; i++) {
        const struct clime_move *m = &s->move[i];
        if (s->done[i] == m->bytes || busy[m->rank]) {
            *all &= s->done[i] == m->bytes;
            continue;
        }
        bool some = s->out ? push(ring_of(l, l->head.rank, m->rank), m, &s->done[i])
                           : pull(ring_of(l, m->rank, l->head.rank), m, &s->done[i]);
        if (some) wake(&l->bell[m->rank]);
        moved |= some;
        busy[m->rank] = s->done[i] < m->bytes;
        *all &= s->done[i] == m->bytes;
    }
    return moved;
}

/* The rank being waited for: one whose bytes are missing, else one that does not read what it is sent. */
static int awaited(const struct side *in, const struct side *out) {
    for (int i = 0; i < in->n; i++)
        if (in->done[i] < in->move[i].bytes) return in->move[i].rank;
    for (int i = 0; i < out->n; i++)
        if (out->done[i] < out->move[i].bytes) return out->move[i].rank;
    return 0;
}

enum clime_err clime_cpu_links_begin(struct clime_links *links, const char *what, bool put,
                                     const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                                     int n_receives, uint32_t *number, struct clime_error *e) {
    (void)put; /* everything received is copied out of a ring */
    struct cpu_links *l = (struct cpu_links *)(void *)links;
    size_t *done = xcalloc((size_t)(n_sends + n_receives) + 1, sizeof *done);
    const struct side out = {sends, done, n_sends, true}, in = {receives, done + n_sends, n_receives, false};
    struct bell *bell = &l->bell[l->head.rank];
    int64_t limit = clime_group_limit_us(l->head.group), moved_us = clime_now_us();
    enum clime_err rc = CLIME_OK;
    *number = 0;
    for (bool sent = false, got = false; !rc;) {
        uint32_t seen = atomic_load(&bell->rung);
        bool moved = advance(l, &out, &sent);
        moved |= advance(l, &in, &got);
        if (sent && got) break;
        int64_t now = clime_now_us();
        if (now - l->answered_us > NAP_MS * 1000) { /* also while busy */
            l->answered_us = now;
            rc = clime_group_answer(l->head.group, e);
            if (rc && e) clime_error_prefix(e, "%s", what);
            if (rc) break;
        }
        if (moved) {
            moved_us = now;
            continue;
        }
        nap(bell, seen);
        l->head.moved.waited_us[awaited(&in, &out)] += clime_now_us() - now;
        if (atomic_load(&bell->rung) != seen) continue;
        rc = clime_group_check(l->head.group, e);
        if (rc && atomic_load(&bell->rung) != seen) { /* a rank that has left may have sent what was missing */
            rc = CLIME_OK;
            continue;
        }
        if (rc && e) clime_error_prefix(e, "%s", what);
        if (!rc && now - moved_us > limit) rc = clime_group_late(l->head.group, awaited(&in, &out), what, e);
    }
    free(done);
    return rc;
}

/* begin has already waited. */
void clime_cpu_links_end(struct clime_links *links, uint32_t number) {
    (void)links, (void)number;
}
