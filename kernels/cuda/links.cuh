/* Links between GPUs: shared by the context, NCCL and the transports (links/links.cu, links/mapped.cu, device.cu,
 * nccl.cu).
 *
 * Exchanges are queued on their own stream, in order: each begins when the context's stream has reached it, and that
 * stream waits for its end where told to. Two words in pinned memory show progress: the exchange that has begun, and
 * the last one done. A transport queues the work between them, and can release a stream that waits for a lost rank. */
#ifndef CLIME_KERNELS_CUDA_LINKS_CUH
#define CLIME_KERNELS_CUDA_LINKS_CUH

#include "kernels/cuda/cuda_int.cuh"

extern "C" {
#include "kernels/links.h"
}

enum { LINKS_QUEUED = 256 }; /* exchanges that the host may queue ahead */

struct clime_link_words {
    volatile uint32_t begun, done;
};

struct clime_link_mapped; /* links/mapped.cu */
struct clime_link_gather; /* links/gather.cu */
struct clime_comm;        /* nccl.cu */

struct clime_cuda_links {
    struct clime_links head; /* must be first */
    struct clime_dev *d;
    struct clime_link_mapped *mapped; /* one of the two */
    struct clime_comm *nccl;
    struct clime_link_gather *gather; /* with mapped; NULL: rows are gathered by exchanges */
    cudaStream_t stream;              /* of exchanges */
    cudaEvent_t forked;               /* the context's stream has reached the queued exchange */
    cudaEvent_t ended[LINKS_QUEUED];
    struct clime_link_words *words; /* pinned; written by the stream */
    uint32_t n_queued;              /* exchanges so far */
    struct {
        const char *what;
        int rank; /* rank it waits for, unless known better */
    } queued[LINKS_QUEUED];
    uint64_t moved; /* progress, and when it was first seen */
    int64_t moved_us;
    int64_t broken_us; /* when waits were released; 0 = no failure */
};

/* links/links.cu: waits until all begun exchanges are done, while checking the other ranks. Call before the driver
 * waits for the whole device, which cannot check. */
void clime_cuda_links_drain(struct clime_cuda_links *l);

/* Stream operations on words; address: of the device. */
bool clime_link_write(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value);
bool clime_link_wait(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value); /* until >= */

/* links/mapped.cu. Collective; *out stays NULL, without an error, where a rank cannot map another's memory: why has the
 * message. */
enum clime_err clime_link_mapped_open(struct clime_dev *d, struct clime_group *g, struct clime_link_mapped **out,
                                      struct clime_error *why, struct clime_error *e);
/* number: of the exchange. in: the stream of the links, where it was forked. */
void clime_link_mapped_queue(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                             const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                             int n_receives);
/* Collective. Where a rank cannot map another's window, puts are queued like other bytes: *why has the message. */
enum clime_err clime_link_mapped_window(struct clime_link_mapped *m, struct clime_group *g, void *at, size_t bytes,
                                        struct clime_error *why, struct clime_error *e);
/* As queue, for bytes that go to windows, if those were mapped. */
void clime_link_mapped_put(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                           const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                           int n_receives);
uint64_t clime_link_mapped_progress(const struct clime_link_mapped *m);
/* The rank awaited in that exchange; -1 = none. */
int clime_link_mapped_awaited(const struct clime_link_mapped *m, uint32_t number);
void clime_link_mapped_release(struct clime_link_mapped *m);    /* ends its current waits */
bool clime_link_mapped_idle(const struct clime_link_mapped *m); /* its stream is idle */
void clime_link_mapped_close(struct clime_link_mapped *m);      /* call when idle */
size_t clime_link_mapped_bytes(int world);

/* links/gather.cu. Collective; *out stays NULL, without an error, where there are too many ranks. */
enum clime_err clime_link_gather_open(struct clime_dev *d, struct clime_group *group, struct clime_link_gather **out,
                                      struct clime_error *e);
void clime_link_gather_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int root, int T,
                             const size_t *at, const void *mine, void *y);
/* links/home.cu; waits are in gather.cu. */
void clime_link_home_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int R, size_t row_bytes,
                           const int32_t *start, int each, const void *rows, void *y);
/* While the stream has work: whether it has waited for one rank for the limit. awaited: for which rank, and for what:
 * NULL = not long. */
bool clime_link_gather_late(struct clime_link_gather *g, int64_t now_us, int64_t limit_us);
const char *clime_link_gather_awaited(const struct clime_link_gather *g, int *rank);
void clime_link_gather_release(struct clime_link_gather *g);
void clime_link_gather_close(struct clime_link_gather *g); /* call when the stream is idle */
size_t clime_link_gather_bytes(int world);

/* nccl.cu: sends and receives in one group call, queued on the stream; returns when they are queued. */
enum clime_err clime_cuda_comm_exchange(struct clime_comm *c, cudaStream_t stream, const struct clime_move *sends,
                                        int n_sends, const struct clime_move *receives, int n_receives,
                                        const struct clime_comm_wait *wait, const char *what, struct clime_error *e);
void clime_cuda_comm_abort(struct clime_comm *c); /* ends waits on the device; only close may follow */

#endif
