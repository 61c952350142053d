/* What links between GPUs share with the context and with NCCL (links/links.cu, links/mapped.cu, device.cu, nccl.cu).
 *
 * Exchanges are queued on a stream of their own, one after the other: each begins when the context's stream has come to
 * it, and that one waits for its end where it is told to. Two words in pinned memory say how far they are: the exchange
 * that has begun, and the last that is done. A way queues what lies between them, and can let a stream go that waits
 * for a rank which will not come. */
#ifndef CLIME_KERNELS_CUDA_LINKS_CUH
#define CLIME_KERNELS_CUDA_LINKS_CUH

#include "kernels/cuda/cuda_int.cuh"

extern "C" {
#include "kernels/links.h"
}

enum { LINKS_QUEUED = 256 }; /* exchanges that the host may be ahead of them */

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
    struct clime_link_gather *gather; /* beside mapped; NULL: rows are gathered by exchanges */
    cudaStream_t stream;              /* of exchanges */
    cudaEvent_t forked;               /* the context's stream has come to the exchange that is queued */
    cudaEvent_t ended[LINKS_QUEUED];
    struct clime_link_words *words; /* pinned; written by the stream */
    uint32_t n_queued;              /* exchanges so far */
    struct {
        const char *what;
        int rank; /* that it waits for, if nothing better is known */
    } queued[LINKS_QUEUED];
    uint64_t moved; /* how far all was, and when that was first seen */
    int64_t moved_us;
    int64_t broken_us; /* when waits were let go; 0 = all is well */
};

/* links/links.cu: until all exchanges that have begun are done, looking at the others meanwhile. Before the driver
 * waits for the whole device, which it does without looking. */
void clime_cuda_links_drain(struct clime_cuda_links *l);

/* The words that a stream writes or waits for; address: of the device. */
bool clime_link_write(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value);
bool clime_link_wait(struct clime_dev *d, cudaStream_t s, const volatile uint32_t *at, uint32_t value); /* until >= */

/* links/mapped.cu. open: all ranks call it; *out stays NULL, without an error, where one of them cannot map another's
 * memory: why says it for people. */
enum clime_err clime_link_mapped_open(struct clime_dev *d, struct clime_group *g, struct clime_link_mapped **out,
                                      struct clime_error *why, struct clime_error *e);
/* number: of the exchange. in: the stream of the links, which is where it was forked. */
void clime_link_mapped_queue(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                             const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                             int n_receives);
/* All ranks call it. Where one cannot map another's, what goes there is queued as other bytes are: *why says it. */
enum clime_err clime_link_mapped_window(struct clime_link_mapped *m, struct clime_group *g, void *at, size_t bytes,
                                        struct clime_error *why, struct clime_error *e);
/* As queue, of bytes that go to windows, if those were mapped. */
void clime_link_mapped_put(struct clime_link_mapped *m, uint32_t number, cudaStream_t in, cudaEvent_t forked,
                           const struct clime_move *sends, int n_sends, const struct clime_move *receives,
                           int n_receives);
uint64_t clime_link_mapped_progress(const struct clime_link_mapped *m);
/* The rank that it waits for in that exchange; -1 = none. */
int clime_link_mapped_awaited(const struct clime_link_mapped *m, uint32_t number);
void clime_link_mapped_release(struct clime_link_mapped *m);    /* lets waits go that are being waited */
bool clime_link_mapped_idle(const struct clime_link_mapped *m); /* its stream has nothing left to do */
void clime_link_mapped_close(struct clime_link_mapped *m);      /* when it is idle */
size_t clime_link_mapped_bytes(int world);

/* links/gather.cu. open: all ranks call it; *out stays NULL, without an error, where there are too many of them. */
enum clime_err clime_link_gather_open(struct clime_dev *d, struct clime_group *group, struct clime_link_gather **out,
                                      struct clime_error *e);
void clime_link_gather_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int root, int T,
                             const size_t *at, const void *mine, void *y);
/* links/home.cu; the waits are gather.cu's. */
void clime_link_home_queue(struct clime_link_gather *g, const char *what, int64_t limit_us, int R, size_t row_bytes,
                           const int32_t *start, int each, const void *rows, void *y);
/* While the stream has work: whether it has waited for one rank for the limit. And for which, and for what: NULL = it
 * has not waited long. */
bool clime_link_gather_late(struct clime_link_gather *g, int64_t now_us, int64_t limit_us);
const char *clime_link_gather_awaited(const struct clime_link_gather *g, int *rank);
void clime_link_gather_release(struct clime_link_gather *g);
void clime_link_gather_close(struct clime_link_gather *g); /* when the stream has nothing left to do */
size_t clime_link_gather_bytes(int world);

/* nccl.cu: sends and receives in one group call, queued on the stream; returns when they are queued. */
enum clime_err clime_cuda_comm_exchange(struct clime_comm *c, cudaStream_t stream, const struct clime_move *sends,
                                        int n_sends, const struct clime_move *receives, int n_receives,
                                        const struct clime_comm_wait *wait, const char *what, struct clime_error *e);
void clime_cuda_comm_abort(struct clime_comm *c); /* ends what waits on the device; only close may follow */

#endif
