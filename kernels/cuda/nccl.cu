/* Groups of GPUs: NCCL, opened at run time, so that a program starts without it. Called by the threads that own the
 * context given to comm_open; a group has its own stream.
 *
 * Communicators are non-blocking: every call returns at once and its state is polled, so a peer that is missing or lost
 * causes an error and not a hang. After an error the communicator is aborted, which also ends a kernel that waits for a
 * peer on the device.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/links.cuh"
#include "kernels/cuda/ops.h"

extern "C" {
#include "common/clock.h"
}

#if __has_include(<nccl.h>)
#include <nccl.h>

enum { POLL_US = 20 };

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(GetUniqueId)                                                                                                     \
    X(CommInitRankConfig)                                                                                              \
    X(CommGetAsyncError)                                                                                               \
    X(CommAbort)                                                                                                       \
    X(Broadcast)                                                                                                       \
    X(AllReduce) X(Send) X(Recv) X(GroupStart) X(GroupEnd) X(GetErrorString) X(GetLastError) X(GetVersion)

static struct {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
    bool there;
} nccl;

struct clime_comm {
    ncclComm_t comm;
    cudaStream_t stream;
    int gpu, rank, world;
    bool dead;
};

static void open_library() {
    void *library = clime_cuda_library("libnccl.so.2", "nccl");
    nccl.there = library != NULL;
#define X(name) nccl.there = nccl.there && (nccl.name = (decltype(nccl.name))dlsym(library, "nccl" #name)) != NULL;
    NCCL_FUNCTIONS(X)
#undef X
}

static enum clime_err need_library(struct clime_error *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return nccl.there
               ? CLIME_OK
               : clime_fail(e, CLIME_ERR_UNAVAILABLE, "libnccl.so.2 is not found; name its folder in LD_LIBRARY_PATH");
}

void clime_cuda_comm_abort(struct clime_comm *c) {
    c->dead = true;
    if (c->comm) nccl.CommAbort(c->comm);
    c->comm = NULL;
}

/* Marks the communicator as unusable. */
static enum clime_err failed(struct clime_comm *c, struct clime_error *e, enum clime_err code, const char *what,
                             const char *why) {
    clime_cuda_comm_abort(c);
    return clime_fail(e, code, "NCCL, rank %d of %d, %s: %s", c->rank, c->world, what, why);
}

/* NCCL's message, and its version: all ranks of a group must have the same. */
static enum clime_err erred(struct clime_comm *c, struct clime_error *e, const char *what, ncclResult_t rc) {
    char why[400];
    int version = 0;
    const char *last = nccl.GetLastError(NULL);
    nccl.GetVersion(&version);
    snprintf(why, sizeof why, "%s%s%.*s (NCCL %d.%d.%d is here)", nccl.GetErrorString(rc), last && *last ? ": " : "",
             last ? (int)strcspn(last, "\n") : 0, last ? last : "", version / 10000, version / 100 % 100,
             version % 100);
    return failed(c, e, CLIME_ERR_UNAVAILABLE, what, why);
}

/* Waits until the communicator, and optionally the stream, is idle. */
static enum clime_err settle(struct clime_comm *c, bool stream, int64_t until_us, const struct clime_comm_wait *wait,
                             const char *what, struct clime_error *e) {
    for (;;) {
        ncclResult_t state = ncclInProgress;
        ncclResult_t rc = nccl.CommGetAsyncError(c->comm, &state);
        if (rc != ncclSuccess) state = rc;
        if (state != ncclSuccess && state != ncclInProgress) return erred(c, e, what, state);
        if (state == ncclSuccess) {
            cudaError_t done = stream ? cudaStreamQuery(c->stream) : cudaSuccess;
            if (done == cudaSuccess) return CLIME_OK;
            if (done != cudaErrorNotReady) return failed(c, e, CLIME_ERR_DEVICE, what, cudaGetErrorString(done));
        }
        if (wait->cancelled && wait->cancelled(wait->arg)) return failed(c, e, CLIME_ERR_ABORTED, what, "given up");
        if (clime_now_us() >= until_us)
            return failed(c, e, CLIME_ERR_TIMEOUT, what, "the others did not come within the time limit");
        clime_sleep_us(POLL_US);
    }
}

enum clime_err clime_cuda_comm_id(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e) {
    static_assert(sizeof(ncclUniqueId) == CLIME_COMM_ID_BYTES, "the id's size is NCCL's");
    (void)d;
    enum clime_err err = need_library(e);
    if (err) return err;
    ncclResult_t rc = nccl.GetUniqueId((ncclUniqueId *)id);
    return rc == ncclSuccess ? CLIME_OK : clime_fail(e, CLIME_ERR_UNAVAILABLE, "NCCL: %s", nccl.GetErrorString(rc));
}

enum clime_err clime_cuda_comm_open(struct clime_dev *d, const uint8_t id[CLIME_COMM_ID_BYTES], int rank, int world,
                                    const struct clime_comm_wait *wait, struct clime_comm **out,
                                    struct clime_error *e) {
    *out = NULL;
    enum clime_err err = need_library(e);
    if (err) return err;
    struct clime_comm *c = (struct clime_comm *)xcalloc(1, sizeof *c);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    config.blocking = 0;
    c->gpu = d->gpu;
    c->rank = rank;
    c->world = world;
    int64_t until_us = clime_now_us() + wait->limit_us;
    cudaError_t rc = cudaSetDevice(c->gpu);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (rc != cudaSuccess) {
        err = failed(c, e, CLIME_ERR_DEVICE, "making a stream", cudaGetErrorString(rc));
    } else {
        ncclResult_t begun = nccl.CommInitRankConfig(&c->comm, world, unique, rank, &config);
        if (begun != ncclSuccess && begun != ncclInProgress)
            err = erred(c, e, "joining", begun);
        else
            err = settle(c, false, until_us, wait, "joining", e);
    }
    if (err)
        clime_cuda_comm_close(c);
    else
        *out = c;
    return err;
}

static bool goes_on(ncclResult_t rc) {
    return rc == ncclSuccess || rc == ncclInProgress;
}

enum clime_err clime_cuda_comm_broadcast(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                         const struct clime_comm_wait *wait, struct clime_error *e) {
    int64_t until_us = clime_now_us() + wait->limit_us;
    if (c->dead) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "NCCL: the group has failed before");
    cudaError_t set = cudaSetDevice(c->gpu);
    if (set != cudaSuccess) return failed(c, e, CLIME_ERR_DEVICE, "broadcast", cudaGetErrorString(set));
    ncclResult_t rc = nccl.GroupStart();
    for (int i = 0; i < n && goes_on(rc); i++)
        rc = nccl.Broadcast(parts[i].at, parts[i].at, parts[i].bytes, ncclUint8, 0, c->comm, c->stream);
    ncclResult_t end = nccl.GroupEnd();
    if (goes_on(rc)) rc = end;
    if (!goes_on(rc)) return erred(c, e, "broadcast", rc);
    return settle(c, true, until_us, wait, "broadcast", e);
}

enum clime_err clime_cuda_comm_exchange(struct clime_comm *c, cudaStream_t stream, const struct clime_move *sends,
                                        int n_sends, const struct clime_move *receives, int n_receives,
                                        const struct clime_comm_wait *wait, const char *what, struct clime_error *e) {
    int64_t until_us = clime_now_us() + wait->limit_us;
    if (c->dead) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "NCCL: the group has failed before");
    ncclResult_t rc = nccl.GroupStart();
    for (int i = 0; i < n_sends && goes_on(rc); i++)
        if (sends[i].bytes) rc = nccl.Send(sends[i].at, sends[i].bytes, ncclUint8, sends[i].rank, c->comm, stream);
    for (int i = 0; i < n_receives && goes_on(rc); i++)
        if (receives[i].bytes)
            rc = nccl.Recv(receives[i].at, receives[i].bytes, ncclUint8, receives[i].rank, c->comm, stream);
    ncclResult_t end = nccl.GroupEnd();
    if (goes_on(rc)) rc = end;
    if (!goes_on(rc)) return erred(c, e, what, rc);
    return settle(c, false, until_us, wait, what, e);
}

enum clime_err clime_cuda_comm_greet(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e) {
    int64_t until_us = clime_now_us() + wait->limit_us;
    float *one = NULL;
    if (c->dead) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "NCCL: the group has failed before");
    cudaError_t rc = cudaSetDevice(c->gpu);
    if (rc == cudaSuccess) rc = cudaMallocAsync((void **)&one, sizeof *one, c->stream);
    if (rc == cudaSuccess) rc = cudaMemsetAsync(one, 0, sizeof *one, c->stream);
    if (rc != cudaSuccess) return failed(c, e, CLIME_ERR_DEVICE, "a greeting", cudaGetErrorString(rc));
    ncclResult_t begun = nccl.AllReduce(one, one, 1, ncclFloat32, ncclSum, c->comm, c->stream);
    enum clime_err err =
        goes_on(begun) ? settle(c, true, until_us, wait, "a greeting", e) : erred(c, e, "a greeting", begun);
    cudaFreeAsync(one, c->stream);
    return err;
}

/* Aborts rather than destroys: that does not wait for the others, and nothing is in flight. */
void clime_cuda_comm_close(struct clime_comm *c) {
    if (!c) return;
    if (c->comm) nccl.CommAbort(c->comm);
    if (c->stream) cudaStreamDestroy(c->stream);
    free(c);
}

#else /* built without NCCL's header */

static enum clime_err without(struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "this program was built where nccl.h is not");
}

enum clime_err clime_cuda_comm_id(struct clime_dev *, uint8_t *, struct clime_error *e) {
    return without(e);
}

enum clime_err clime_cuda_comm_open(struct clime_dev *, const uint8_t *, int, int, const struct clime_comm_wait *,
                                    struct clime_comm **out, struct clime_error *e) {
    *out = NULL;
    return without(e);
}

enum clime_err clime_cuda_comm_broadcast(struct clime_comm *, const struct clime_comm_part *, int,
                                         const struct clime_comm_wait *, struct clime_error *e) {
    return without(e);
}

enum clime_err clime_cuda_comm_greet(struct clime_comm *, const struct clime_comm_wait *, struct clime_error *e) {
    return without(e);
}

enum clime_err clime_cuda_comm_exchange(struct clime_comm *, cudaStream_t, const struct clime_move *, int,
                                        const struct clime_move *, int, const struct clime_comm_wait *, const char *,
                                        struct clime_error *e) {
    return without(e);
}

void clime_cuda_comm_abort(struct clime_comm *) {}

void clime_cuda_comm_close(struct clime_comm *) {}

#endif
