/* Links between GPUs, one process per GPU: through memory that peers map if all are on one host and can, else by NCCL's
 * send and receive; bytes are never added. Called by the owner of context and group.
 *
 * The host only queues an exchange and never waits in it, so a lost rank is noticed when the host waits for the
 * context's stream. While links are open it polls the stream instead of sleeping in the driver (clime_cuda_wait), and
 * checks the group meanwhile. When a rank is lost, or nothing has moved for the group's limit in an exchange that has
 * begun, the streams' waits are released: all queued work then runs to its end on undefined bytes, and the failure
 * stays in the context.
 *
 * Invariant: the work of all streams ends, whatever the other ranks do.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cuda/links.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/clock.h"
#include "common/log.h"
}

enum { SPIN_US = 1000, POLL_US = 20, LOOK_US = 10000, LET_GO_US = 10000000 };

/* ---- words ---- */

static struct {
    PFN_cuStreamWaitValue32_v11070 wait;
    PFN_cuStreamWriteValue32_v11070 write;
} words;

static void find_words() {
    struct {
        const char *name;
        void **at;
    } const names[] = {{"cuStreamWaitValue32", (void **)&words.wait}, {"cuStreamWriteValue32", (void **)&words.write}};
    for (size_t i = 0; i < CLIME_COUNT(names); i++) {
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion(names[i].name, names[i].at, 11070, cudaEnableDefault, &found) !=
                cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            *names[i].at = NULL;
    }
}

static bool words_ok(struct clime_dev *d, CUresult rc, const char *what) {
    if (rc == CUDA_SUCCESS) return true;
    if (d->failure.code == CLIME_OK)
        clime_fail(&d->failure, CLIME_ERR_DEVICE, "the driver failed to %s a word: %d", what, (int)rc);
    return false;
}

bool clime_link_write(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value) {
    return words_ok(d, words.write((CUstream)s, (CUdeviceptr)(uintptr_t)at, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                    "write");
}

bool clime_link_wait(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value) {
    return words_ok(d, words.wait((CUstream)s, (CUdeviceptr)(uintptr_t)at, value, CU_STREAM_WAIT_VALUE_GEQ),
                    "wait for");
}

/* ---- open and close ---- */

static bool is_lost(void *group) {
    return clime_group_check((struct clime_group *)group, NULL) != CLIME_OK;
}

static struct clime_comm_wait as_group(struct clime_group *g) {
    const struct clime_comm_wait w = {clime_group_limit_us(g), is_lost, g};
    return w;
}

/* The error of an NCCL wait; a lost or late rank is named by the group instead. */
static enum clime_err explain(struct clime_group *g, int rank, const char *what, enum clime_err rc,
                              struct clime_error *e) {
    struct clime_error lost;
    if (rc == CLIME_ERR_TIMEOUT) return clime_group_late(g, rank, what, e);
    if (!clime_group_check(g, &lost)) return rc;
    if (e) *e = lost;
    if (e) clime_error_prefix(e, "%s", what);
    return lost.code;
}

static enum clime_err open_nccl(struct clime_cuda_links *l, struct clime_error *e) {
    struct clime_group *g = l->head.group;
    const struct clime_comm_wait wait = as_group(g);
    uint8_t id[CLIME_COMM_ID_BYTES] = {};
    size_t from[CLIME_GROUP_MAX + 1] = {0};
    enum clime_err rc = l->head.rank ? CLIME_OK : clime_cuda_comm_id(l->d, id, e);
    for (int r = 1; r <= l->head.world; r++) from[r] = sizeof id;
    if (!rc) rc = clime_group_share(g, "NCCL's id", id, from, e);
    if (rc) return rc;
    rc = clime_cuda_comm_open(l->d, id, l->head.rank, l->head.world, &wait, &l->nccl, e);
    return rc ? explain(g, l->head.rank ? 0 : 1, "opening NCCL", rc, e) : CLIME_OK;
}

static enum clime_err open_way(struct clime_cuda_links *l, struct clime_error *e) {
    struct clime_group *g = l->head.group;
    struct clime_error why = {};
    bool may_map = l->d->links_way != CLIME_LINKS_NCCL && clime_group_one_host(g);
    enum clime_err rc = may_map ? clime_link_mapped_open(l->d, g, &l->mapped, &why, e) : CLIME_OK;
    l->head.way = "memory that peers map";
    if (!rc && l->mapped) rc = clime_link_gather_open(l->d, g, &l->gather, e);
    l->head.records = l->gather != NULL;
    if (rc || l->mapped) return rc;
    if (l->d->links_way == CLIME_LINKS_MAPPED)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "ranks cannot map each other's memory: %s",
                          may_map ? why.msg : "they do not see each other's processes");
    if (may_map) LOG_INFO("ranks cannot map each other's memory: %s", why.msg);
    l->head.way = "NCCL";
    return open_nccl(l, e);
}

static bool open_stream(struct clime_cuda_links *l) {
    bool ok = cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking) == cudaSuccess &&
              cudaEventCreateWithFlags(&l->forked, cudaEventDisableTiming) == cudaSuccess;
    for (cudaEvent_t &event : l->ended)
        ok = ok && cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
    return ok;
}

static void close_stream(struct clime_cuda_links *l) {
    for (cudaEvent_t event : l->ended)
        if (event) cudaEventDestroy(event);
    if (l->forked) cudaEventDestroy(l->forked);
    if (l->stream) cudaStreamDestroy(l->stream);
}

enum clime_err clime_cuda_links_open(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                     struct clime_error *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *out = NULL;
    pthread_once(&once, find_words);
    if (!words.wait || !words.write)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the GPU's driver is too old for several ranks");
    struct clime_cuda_links *l = (struct clime_cuda_links *)xcalloc(1, sizeof *l);
    l->head.ops = d->head.ops;
    l->head.dev = d;
    l->head.group = g;
    l->head.rank = clime_group_rank(g);
    l->head.world = clime_group_world(g);
    l->d = d;
    enum clime_err rc = CLIME_OK;
    if (cudaMallocHost((void **)&l->words, sizeof *l->words) != cudaSuccess)
        rc = clime_fail(e, CLIME_ERR_LIMIT, "a page of page-locked host memory is not to be had");
    if (!rc && !open_stream(l)) rc = clime_fail(e, CLIME_ERR_DEVICE, "a stream for links is not to be had");
    if (!rc) l->words->begun = l->words->done = 0;
    if (!rc) rc = open_way(l, e);
    if (rc) {
        clime_cuda_links_close(&l->head);
        return rc;
    }
    d->links = l;
    *out = &l->head;
    return CLIME_OK;
}

size_t clime_cuda_links_bytes(int world) {
    return clime_link_mapped_bytes(world) + clime_link_gather_bytes(world);
}

/* ---- waiting ---- */

static void let_go(struct clime_cuda_links *l) {
    if (!l->broken_us) l->broken_us = clime_now_us();
    if (l->mapped) clime_link_mapped_release(l->mapped);
    if (l->gather) clime_link_gather_release(l->gather);
    if (l->nccl) clime_cuda_comm_abort(l->nccl);
}

/* Fails the context with the group's failure. */
static void fail(struct clime_cuda_links *l, const struct clime_error *why) {
    if (l->d->failure.code == CLIME_OK) l->d->failure = *why;
    let_go(l);
}

/* Checks the other ranks once while the stream has work. */
static void look(struct clime_cuda_links *l, int64_t now) {
    struct clime_group *g = l->head.group;
    struct clime_error e;
    uint32_t done = l->words->done, begun = l->words->begun, n = done % LINKS_QUEUED;
    int rank = -1;
    bool late = l->gather && clime_link_gather_late(l->gather, now, clime_group_limit_us(g));
    const char *gathered = l->gather ? clime_link_gather_awaited(l->gather, &rank) : NULL,
               *what = gathered              ? gathered
                       : done != l->n_queued ? l->queued[n].what
                                             : "waiting for the device";
    uint64_t moved = begun + done + (l->mapped ? clime_link_mapped_progress(l->mapped) : 0);
    if (l->broken_us) {
        let_go(l); /* waits queued since */
    } else if (clime_group_check(g, &e)) {
        clime_error_prefix(&e, "%s", what);
        fail(l, &e);
    } else if (late) {
        clime_group_late(g, rank, what, &e);
        fail(l, &e);
    } else if (begun == done || moved != l->moved) {
        l->moved = moved;
        l->moved_us = now;
    } else if (now - l->moved_us > clime_group_limit_us(g)) {
        rank = l->mapped ? clime_link_mapped_awaited(l->mapped, n) : -1;
        clime_group_late(g, rank < 0 ? l->queued[n].rank : rank, what, &e);
        fail(l, &e);
    }
}

static cudaError_t state_of(const struct clime_cuda_links *l, cudaEvent_t event) {
    if (l->broken_us && l->mapped && !clime_link_mapped_idle(l->mapped)) return cudaErrorNotReady;
    if (l->broken_us && cudaStreamQuery(l->stream) == cudaErrorNotReady) return cudaErrorNotReady;
    return event ? cudaEventQuery(event) : cudaStreamQuery(l->d->stream);
}

bool clime_cuda_links_wait(struct clime_cuda_links *l, cudaEvent_t event) {
    struct clime_dev *d = l->d;
    int64_t next_look = 0, began = clime_now_us();
    for (;;) {
        cudaError_t rc = state_of(l, event);
        if (rc == cudaSuccess) return d->failure.code == CLIME_OK;
        if (rc != cudaErrorNotReady) return clime_cuda_ok(d, rc, "waiting for the stream");
        cudaGetLastError(); /* not ready is no failure */
        int64_t now = clime_now_us();
        if (l->broken_us && now - l->broken_us > LET_GO_US) return false;
        if (now >= next_look) {
            look(l, now);
            next_look = now + (l->broken_us ? POLL_US : LOOK_US);
        }
        if (now - began > SPIN_US) clime_sleep_us(POLL_US); /* a server's step is polled without sleeping */
    }
}

void clime_cuda_links_drain(struct clime_cuda_links *l) {
    if (l->n_queued) clime_cuda_links_end(&l->head, l->n_queued - 1);
    clime_cuda_links_wait(l, NULL);
}

void clime_cuda_links_close(struct clime_links *links) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    struct clime_dev *d = l->d;
    if (d->links && clime_group_check(l->head.group, NULL)) let_go(l); /* the others will not come */
    if (d->links) clime_cuda_links_drain(l);
    d->links = NULL;
    clime_link_gather_close(l->gather);
    clime_link_mapped_close(l->mapped);
    clime_cuda_comm_close(l->nccl);
    close_stream(l);
    if (l->words) cudaFreeHost(l->words);
    free(l);
}

/* ---- an exchange ---- */

static bool any_bytes(const struct clime_move *moves, int n) {
    for (int i = 0; i < n; i++)
        if (moves[i].bytes) return true;
    return false;
}

/* Queues after the earlier work, between its two words. */
static void queue(struct clime_cuda_links *l, const char *what, bool put, const struct clime_move *sends, int n_sends,
                  const struct clime_move *receives, int n_receives) {
    struct clime_dev *d = l->d;
    const uint32_t number = l->n_queued++;
    const int rank = n_receives ? receives[0].rank : sends[0].rank;
    l->queued[number % LINKS_QUEUED].what = what;
    l->queued[number % LINKS_QUEUED].rank = rank;
    CU(d, cudaEventRecord(l->forked, d->stream));
    CU(d, cudaStreamWaitEvent(l->stream, l->forked, 0));
    clime_link_write(d, l->stream, &l->words->begun, number + 1);
    if (l->mapped) {
        (put ? clime_link_mapped_put : clime_link_mapped_queue)(l->mapped, number, l->stream, l->forked, sends, n_sends,
                                                                receives, n_receives);
    } else {
        const struct clime_comm_wait wait = as_group(l->head.group);
        struct clime_error e;
        enum clime_err rc =
            clime_cuda_comm_exchange(l->nccl, l->stream, sends, n_sends, receives, n_receives, &wait, what, &e);
        if (rc) explain(l->head.group, rank, what, rc, &e);
        if (rc) fail(l, &e);
    }
    clime_link_write(d, l->stream, &l->words->done, number + 1);
    CU(d, cudaEventRecord(l->ended[number % LINKS_QUEUED], l->stream));
}

enum clime_err clime_cuda_links_window(struct clime_links *links, void *at, size_t bytes, struct clime_error *e) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    struct clime_error why = {};
    if (!l->mapped) return CLIME_OK;
    enum clime_err rc = clime_link_mapped_window(l->mapped, l->head.group, at, bytes, &why, e);
    if (!rc && why.code && l->head.rank == 0)
        LOG_WARN("what ranks send each other lies in between once more, which costs training speed: %s", why.msg);
    return rc;
}

enum clime_err clime_cuda_links_begin(struct clime_links *links, const char *what, bool put,
                                      const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                                      int n_receives, uint32_t *number, struct clime_error *e) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    struct clime_dev *d = l->d;
    CHECK(!d->recording);
    clime_cuda_flush(d); /* what is sent may depend on deferred launches */
    if (l->n_queued - l->words->done >= LINKS_QUEUED) clime_cuda_links_wait(l, l->ended[l->n_queued % LINKS_QUEUED]);
    if (d->failure.code == CLIME_OK && (any_bytes(sends, n_sends) || any_bytes(receives, n_receives)))
        queue(l, what, put, sends, n_sends, receives, n_receives);
    *number = l->n_queued - 1; /* an exchange of no bytes ends with the last one that had some */
    if (d->failure.code && e) *e = d->failure;
    return d->failure.code;
}

void clime_cuda_links_rows(struct clime_links *links, const char *what, int root, int T, const size_t *at,
                           const void *mine, void *y) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    CHECK(l->gather);
    clime_link_gather_queue(l->gather, what, clime_group_limit_us(l->head.group), root, T, at, mine, y);
}

void clime_cuda_links_home(struct clime_links *links, const char *what, int R, size_t row_bytes, const int32_t *start,
                           int each, const void *rows, void *y) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    CHECK(l->gather);
    clime_link_home_queue(l->gather, what, clime_group_limit_us(l->head.group), R, row_bytes, start, each, rows, y);
}

void clime_cuda_links_end(struct clime_links *links, uint32_t number) {
    struct clime_cuda_links *l = (struct clime_cuda_links *)links;
    if (l->n_queued == 0) return;
    clime_cuda_flush(l->d);
    CU(l->d, cudaStreamWaitEvent(l->d->stream, l->ended[number % LINKS_QUEUED], 0));
}
