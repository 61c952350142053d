/* The table of operations that server and trainer run on, one per kind of device.
 *
 * Nouns: a `clime_dev` is one device context (CPU thread pool or GPU) with one type for weights and activations (dt);
 * `clime_ops` is what it can do. main chooses once (--device auto|cpu|cuda); no other code depends on the kind. The CPU
 * table is always present and is the oracle of the other tables' tests.
 *
 * Pointers named x, y, w, ... are device memory from ops->alloc (plain memory on the CPU). Work is queued in order;
 * ops->sync waits. Scalars and structs are host memory, read before the call returns. One thread at a time owns a dev.
 *
 * Layout: row-major, rows packed. Letters as in README: T rows (tokens), D hidden, V vocabulary, H query heads, HK
 * key/value heads, Dh head size, F MLP width, L layers, R rows of the head. "dt" = the type of the context.
 *
 * Determinism classes (docs/numerics.md; every operation gives the same bits in every run):
 *   ROW    a row's result depends on that row alone, by a fixed tree: any batch, any position in it
 *   CHAIN  one fp32 accumulator per output, K ascending: any number of rows
 *   ORDER  sums over rows in ascending order: depends on the batch, not on threads or timing
 *
 * "=" overwrites, "+=" accumulates. Inputs and outputs may alias only where stated.
 */
#ifndef CLIME_KERNELS_KERNELS_H
#define CLIME_KERNELS_KERNELS_H

#include <stdint.h>

#include "common/err.h"

enum clime_dtype { CLIME_F32, CLIME_BF16 };

/* For trial_bytes and choose: a product by its output type, and its gradients with respect to x and w. */
enum clime_trial { CLIME_TRIAL_FORWARD, CLIME_TRIAL_FORWARD_F32, CLIME_TRIAL_DX, CLIME_TRIAL_DW };

static inline size_t clime_dtype_bytes(enum clime_dtype t) {
    return t == CLIME_F32 ? 4 : 2;
}

#define CLIME_SHARE_BYTES 64    /* of a shared memory handle */
#define CLIME_COMM_ID_BYTES 128 /* of a group's id */
#define CLIME_PAGE 64           /* positions in a KV page = keys in one online-softmax block */
#define CLIME_TREE_MAX 64       /* most arrays added as one tree: the ranks of a group */
#define CLIME_VOCAB_UNIT 16     /* logits per unit of a device's share: whole tiles of a product */

struct clime_dev;   /* each table's own context; begins with struct clime_dev_head */
struct clime_graph; /* recorded work */
struct clime_ops;

struct clime_dev_head {
    const struct clime_ops *ops;
    enum clime_dtype dt;
    char name[64]; /* kind of device and instruction set, recorded with every sample: bits hold within one name */
    char unit[64]; /* which of the host's devices: the GPU's UUID, "cpu" */
};

enum clime_links_way {                   /* how GPUs of a group exchange bytes */
                       CLIME_LINKS_AUTO, /* mapped peer memory where all GPUs support it, else NCCL */
                       CLIME_LINKS_MAPPED,
                       CLIME_LINKS_NCCL
};

struct clime_dev_options {
    enum clime_dtype dt;
    int n_threads;      /* CPU: 0 = all cores this process may use */
    const char *isa;    /* CPU: NULL = best; "generic", "avx2", "avx512", "amx" (tests) */
    int gpu;            /* CUDA: device index */
    bool deterministic; /* CUDA: products keep the determinism contract. false: the library's fastest, which depends on
                         * the number of rows; only to measure the contract's cost */
    enum clime_links_way links; /* CUDA */
};

/* A weight matrix of a product. Host memory; data and packed are the device's. */
struct clime_matrix {
    int N, K;
    const void *data; /* w[N, K] in the type of the context */
    void *packed;     /* the same in the device's own order, filled by pack; NULL: not used */
    int n_experts;    /* 0; or for grouped products: the number of experts, contiguous in data, each packed separately
                       * in packed, pack_bytes apart */
    struct {          /* experts [from, to) are read here, contiguous, instead of in data; none: from == to */
        const void *data;
        int from, to;
    } kept;
};

/* One expert's w[N, K]; width: bytes of an element. */
static inline const void *clime_matrix_expert(const struct clime_matrix *w, int e, size_t width) {
    const bool kept = e >= w->kept.from && e < w->kept.to;
    return (const char *)(kept ? w->kept.data : w->data) +
           (size_t)(kept ? e - w->kept.from : e) * (size_t)w->N * (size_t)w->K * width;
}

#define CLIME_MAX_EXPERTS 1024

/* How a router chooses k of E experts for a row. */
struct clime_router {
    int E, k;
    bool sigmoid;           /* scores are sigmoids of the logits; else their softmax over all E */
    bool renormalize;       /* divide the chosen experts' weights by their sum */
    float scale;            /* multiplies the weights */
    int n_groups, k_groups; /* experts are in n_groups of E / n_groups neighbours; the choice is limited to the k_groups
                             * groups with the largest sum of their two best. k_groups == n_groups: no limit */
};

/* Rotary table, fp32, computed on the host once and uploaded: cos, sin [max_pos, rot/2]. */
struct clime_rope {
    const float *cos, *sin;
    int max_pos;
    int rot;          /* rotated dimensions of a head, even, <= Dh */
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + rot/2) */
};

/* Shape of attention, constant for a model. */
struct clime_heads {
    int H, HK, Dh;
    float scale; /* of q.k, usually 1/sqrt(Dh) */
    /* All keys share a component (a bias). A score's gradient is P (dP - delta); an error in delta then has the same
     * direction in every row and accumulates in the gradients of q, k and their biases. The usual delta, dout . out,
     * has the rounding error of out; with this set a bf16 backward sums P dP itself, at the cost of two products. */
    bool common_keys;
    /* 0; or values are the first Dv elements of their keys: v is not read, a head of out and of dout has Dv elements,
     * and dk is a key's whole gradient (dv is not written). */
    int Dv;
};

/* Latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). One row per position is cached, [R elements after a norm | Dr
 * that rotate]: the key of all heads; its first R elements are their value (clime_heads: HK = 1, Dh = R + Dr, Dv = R).
 * A head's query [Dn | Dr] is mapped by a matrix [Dn, R], its output by one [Dv, R]. */
struct clime_latent {
    int R, Dn, Dr, Dv;
};

/* A product per head, y = x w^T with w[N, K]: strides of rows and heads, in elements. */
struct clime_head_product {
    int H, N, K;
    int x_row, x_head, y_row, y_head; /* stride between rows, between heads */
    int w_head;
};

/* Which rows attend to which keys. The rows of a sequence are consecutive in the batch and in position. Keys of a
 * sequence come in blocks of CLIME_PAGE positions counted from the start of the sequence.
 *   packed: page_table == NULL; k, v are [T, HK, Dh] rows of this batch; every sequence starts at position 0.
 *   paged:  k, v are pools [n_pages, HK, CLIME_PAGE, Dh]; block b of sequence s is page page_table[s*max_pages + b].
 * A row at position p attends to positions 0..p. Arrays are device memory; h_ arrays are host copies, for planning
 * tiles without a transfer. A paged batch of one row per sequence may omit them (h_q_start == NULL): the plan then
 * follows max_len, an upper bound, and the recorded work can be replayed for other lengths (CUDA only). */
struct clime_attn {
    int n_seq;
    const int32_t *q_start, *h_q_start; /* [n_seq + 1] first row of each sequence */
    const int32_t *pos0, *h_pos0;       /* [n_seq] position of that row; NULL when packed */
    const int32_t *page_table;          /* [n_seq, max_pages] or NULL */
    int max_pages;
    int max_len; /* the longest sequence in keys, for sizing scratch */
};

/* A change to one logit before sampling: x += add (-inf bans the token). */
struct clime_logit_edit {
    int32_t id;
    float add; /* bias minus frequency and presence penalties */
};

/* A set of token ids as a bit mask: bit id % 32 of word id / 32; its cost per row does not depend on its size. */
static inline size_t clime_id_words(int V) {
    return ((size_t)V + 31) / 32;
}
static inline void clime_id_add(uint32_t *set, int32_t id) {
    set[id / 32] |= UINT32_C(1) << id % 32;
}
static inline bool clime_id_in(const uint32_t *set, int32_t id) {
    return set[id / 32] >> id % 32 & 1;
}

struct clime_sampling {
    uint64_t seed;
    int64_t position; /* absolute position of the sampled token */
    float inv_temp;   /* clime_inv_temp; 1 when greedy */
    bool greedy;
    int32_t top_k; /* <= 0: off */
    float top_p;   /* >= 1: off */
    float min_p;   /* <= 0: off */
    /* Edits, applied in this order; host memory. */
    const uint32_t *seen; /* [clime_id_words(V)] of these x = x > 0 ? x / repetition : x * repetition; NULL = none */
    float repetition;
    int32_t n_edits;
    const struct clime_logit_edit *edits; /* each id once */
    const uint32_t *allowed;              /* [clime_id_words(V)] only these ids are sampled; NULL = all */
    int32_t kept_room;                    /* most candidate ids to list; 0 = no list */
};

static inline bool clime_sampling_edits(const struct clime_sampling *p) { /* before sampling */
    return p->seen || p->n_edits > 0 || p->allowed;
}

#define CLIME_LIST_TOP 1024 /* largest n_top of a list */
#define CLIME_MAX_KEPT 4096 /* largest candidate set of a row (sample, head_keep) */

/* Log-probabilities wanted of a row besides the sampled token's: the n_top largest, then those of given ids, then the
 * rank of one. */
struct clime_logp_list {
    int32_t row;
    float inv_temp;
    int32_t n_top, n_ids;
    const int32_t *ids; /* host memory */
    bool ranked;        /* one more entry: id is the rank of rank_of, 1 for the largest; ties by lower id */
    int32_t rank_of;
};
static inline size_t clime_logp_list_entries(const struct clime_logp_list *l) {
    return (size_t)(l->n_top + l->n_ids + l->ranked);
}

struct clime_id_logp {
    int32_t id;
    float logp;
};

/* The factor on logits for a temperature T > 0, for every log-probability: the inverse of the float nearest to T.
 * Server and trainer hold T as a double, a float or text with enough digits; rounding it to float first gives the same
 * inverse. (The inverse of the double rounds to another float for 37 of the 200 T from 0.01 to 2.00.) */
static inline float clime_inv_temp(double temperature) {
    return 1.0f / (float)temperature;
}

struct clime_drawn {
    int32_t id;
    float logp;     /* log softmax(x * inv_temp)[id] of the unedited logits: the logprob of docs/numerics.md */
    float logp_cut; /* of the sampled distribution (edited, truncated, renormalised); 0 when greedy */
    bool bad;       /* the row held a NaN or no finite logit; id is 0 */
    int32_t n_kept; /* candidate ids, when their list is wanted; may exceed kept_room */
};

struct clime_adamw {
    float lr, beta1, beta2, eps, weight_decay; /* weight_decay 0 for norms and biases: the caller's choice per range */
    float correct1, correct2;                  /* 1 - beta^t */
    float grad_scale;                          /* clip factor; multiplies the gradient first */
};

/* The largest arguments of a trainer's calls, or, where n_seq is not 0, a server's, for scratch_bytes. */
struct clime_scratch_shape {
    int T, D; /* rows of a micro-batch or a step, hidden width */
    int R, V; /* rows of a chunk of the head or of a block of samples */
    struct clime_heads heads;
    size_t n;           /* number of weights, trainer only */
    int n_seq, max_len; /* server only: sequences of a step, and keys of the longest */
};

struct clime_comm; /* one process's end of a group; each table has its own type */

struct clime_group; /* common/group/group.h */
struct clime_links; /* kernels/links.h */
struct clime_move;

struct clime_comm_part {
    void *at;
    size_t bytes;
};

struct clime_comm_wait { /* limits of a wait for other ranks */
    int64_t limit_us;
    bool (*cancelled)(void *arg); /* NULL = never; polled */
    void *arg;
};

struct clime_ops {
    const char *name;  /* "cpu", "cuda" */
    bool f32;          /* a context may have dt CLIME_F32; every table supports CLIME_BF16 */
    size_t head_bytes; /* preferred bytes of a chunk of fp32 logits in training: enough rows to use the device well */
    /* The device has its own memory: a plan that exceeds the free bytes must be refused. Otherwise memory is the
     * machine's, where caches shrink and a hypervisor may add some. */
    bool own_memory;
    bool queues;       /* calls are asynchronous; false: done when the call returns */
    size_t code_bytes; /* device memory for kernels' code and libraries, allocated at first use */

    /* ---- context and memory ------------------------------------------------------------------------------- */
    enum clime_err (*open)(const struct clime_dev_options *o, struct clime_dev **out, struct clime_error *e);
    void (*close)(struct clime_dev *d);
    /* CLIME_ERR_LIMIT, naming what, when memory is exhausted. 256-byte aligned, not zeroed. */
    enum clime_err (*alloc)(struct clime_dev *d, size_t bytes, const char *what, void **out, struct clime_error *e);
    void (*free)(struct clime_dev *d, void *p);
    void (*copy_in)(struct clime_dev *d, void *dst, const void *h_src, size_t bytes);  /* h_src can be reused */
    void (*copy_out)(struct clime_dev *d, void *h_dst, const void *src, size_t bytes); /* blocks; h_dst is filled */
    void (*copy)(struct clime_dev *d, void *dst, const void *src, size_t bytes);
    /* n rows of `bytes` bytes; steps are strides in bytes, each at least a row. */
    void (*copy_rows)(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                      size_t src_step);
    void (*zero)(struct clime_dev *d, void *p, size_t bytes);
    /* Pinned host memory, and asynchronous copies of it. copy_out_start fills h_dst by the time copy_wait of its mark
     * (0 or 1) returns; copy_wait reports failures as sync does. h_src of copy_in_start and copy_in_rows_start can be
     * reused once a later copy_out_start was waited for, or at sync. */
    enum clime_err (*host_alloc)(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                 struct clime_error *e);
    void (*host_free)(struct clime_dev *d, void *p);
    void (*copy_out_start)(struct clime_dev *d, void *h_dst, const void *src, size_t bytes, int mark);
    enum clime_err (*copy_wait)(struct clime_dev *d, int mark, struct clime_error *e);
    void (*copy_in_start)(struct clime_dev *d, void *dst, const void *h_src, size_t bytes);
    void (*copy_in_rows_start)(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *h_src,
                               size_t src_step);
    /* Waits for all queued work; reports the first device failure since the last sync (then the context is dead). */
    enum clime_err (*sync)(struct clime_dev *d, struct clime_error *e);
    /* Free and total bytes of the device's memory (CPU: of the machine). */
    void (*memory)(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes);
    /* The operations' own scratch: an upper bound for calls up to a shape (0 = little, and not in device memory);
     * reserve_scratch allocates it in advance, so that no step allocates. */
    size_t (*scratch_bytes)(const struct clime_scratch_shape *s);
    /* Temporary memory of gemm's first product of a shape with up to T rows, to choose its algorithm; without it a slow
     * one is used until there is memory. T, N, K: of the forward product y[T,N] = x[T,K] w^T. */
    size_t (*trial_bytes)(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
    /* Makes these choices now for all numbers of rows up to T, so that no step stalls for one. */
    void (*choose)(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
    enum clime_err (*reserve_scratch)(struct clime_dev *d, size_t bytes, struct clime_error *e);

    /* ---- recorded work -------------------------------------------------------------------------------------- */
    /* Between graph_begin and graph_end, operations on device memory alone (products, rows, attention without h_
     * arrays, head_stats) are recorded instead of queued; the same calls must have run once before. graph_launch queues
     * them with the recorded addresses and sizes. NULL where the device does not benefit. graph_end: CLIME_ERR_LIMIT
     * when out of memory; then nothing was recorded, and nothing else is affected. */
    void (*graph_begin)(struct clime_dev *d);
    enum clime_err (*graph_end)(struct clime_dev *d, struct clime_graph **out, struct clime_error *e);
    void (*graph_launch)(struct clime_dev *d, struct clime_graph *g);
    void (*graph_free)(struct clime_dev *d, struct clime_graph *g);

    /* ---- memory shared by processes of one host ------------------------------------------------------------ */
    /* Allocates memory that share_export accepts; free frees it. */
    enum clime_err (*alloc_shared)(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                   struct clime_error *e);
    /* The handle by which other processes map the whole of p (from alloc_shared). Valid while p is. */
    enum clime_err (*share_export)(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                   struct clime_error *e);
    /* Maps at least `bytes` bytes that another process exported, read-only. *same_unit: the memory is on this device.
     * CLIME_ERR_INPUT when the handle names no memory of that size that this device can reach. */
    enum clime_err (*share_open)(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                 bool *same_unit, void **out, struct clime_error *e);
    void (*share_close)(struct clime_dev *d, void *p);
    /* Waits until the exporter's queue has reached the event of that handle, at most limit_us (CLIME_ERR_TIMEOUT). NULL
     * where nothing is queued. */
    enum clime_err (*share_wait)(struct clime_dev *d, const uint8_t event[CLIME_SHARE_BYTES], int64_t limit_us,
                                 struct clime_error *e);
    /* Sum over 8-byte words (the last padded with zeros) of a hash of word and index; the first word's index is
     * `first`, so a buffer's checksum is the sum of its parts'. p: whole words. Blocks. The same on every device: both
     * sides of a copy compare it. */
    uint64_t (*checksum)(struct clime_dev *d, uint64_t first, size_t bytes, const void *p);
    /* Whether all n numbers are finite; blocks. */
    bool (*finite)(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x);
    /* Moves the context to the calling thread. */
    void (*bind)(struct clime_dev *d);

    /* ---- memory that can be released and keeps its address (recorded work stays valid) ---------------------- */
    /* As alloc; free frees it, released or not. */
    enum clime_err (*alloc_fixed)(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                  struct clime_error *e);
    void (*give_back)(struct clime_dev *d, void *p); /* blocks; releases the memory; p must not be accessed */
    /* Allocates memory at the same address again, not zeroed. CLIME_ERR_LIMIT: none is free; nothing has changed. */
    enum clime_err (*take_back)(struct clime_dev *d, void *p, struct clime_error *e);

    /* ---- groups of processes with one device each ----------------------------------------------------------- */
    /* Every wait ends: with CLIME_ERR_TIMEOUT at the limit, CLIME_ERR_ABORTED when cancelled, CLIME_ERR_UNAVAILABLE
     * when a peer is lost. After an error only comm_close may follow. */
    const char *comm_backend; /* "nccl"; "socket" between CPUs */
    /* Made by rank 0, sent to all. CLIME_ERR_UNAVAILABLE: the library is missing. */
    enum clime_err (*comm_id)(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e);
    /* Returns when all `world` ranks have called it. The group has its own queue on d's device. */
    enum clime_err (*comm_open)(struct clime_dev *d, const uint8_t id[CLIME_COMM_ID_BYTES], int rank, int world,
                                const struct clime_comm_wait *wait, struct clime_comm **out, struct clime_error *e);
    /* Copies rank 0's parts to all others' of the same sizes, one transfer each; blocks. */
    enum clime_err (*comm_broadcast)(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                     const struct clime_comm_wait *wait, struct clime_error *e);
    /* An all-reduce of one float, with which groups of vLLM's trainers begin; the sum is not used. */
    enum clime_err (*comm_greet)(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e);
    void (*comm_close)(struct clime_comm *c); /* does not wait for the others; NULL is fine */

    /* ---- links between the devices of a group (documented and only called by kernels/links.h) ---------------- */
    size_t (*links_bytes)(int world); /* upper bound of the device memory that open allocates */
    enum clime_err (*links_open)(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                 struct clime_error *e);
    /* NULL: puts are sent like other bytes. */
    enum clime_err (*links_window)(struct clime_links *l, void *at, size_t bytes, struct clime_error *e);
    enum clime_err (*links_begin)(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                                  int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                                  struct clime_error *e);
    void (*links_end)(struct clime_links *l, uint32_t number);
    void (*links_close)(struct clime_links *l);
    /* NULL where links do not record (clime_links_gather_rows). mine: T rows of this rank's columns. */
    void (*links_rows)(struct clime_links *l, const char *what, int root, int T, const size_t *at, const void *mine,
                       void *y);
    /* As clime_links_home; NULL where links do not record. */
    void (*links_home)(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start, int each,
                       const void *rows, void *y);
    /* Joins an all-gather of columns to rows: y[T] rows of at[n] bytes, of which part r has bytes [at[r], at[r+1]); the
     * parts, of T rows each, are contiguous. at: [n + 1] host memory. ROW. NULL where there are no links. */
    void (*join_columns)(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y);

    /* ---- matrix products ---------------------------------------------------------------------------------- */
    /* Bytes of a matrix in the device's own order; 0 = it has none, and `packed` is ignored everywhere. */
    size_t (*pack_bytes)(struct clime_dev *d, int N, int K);
    void (*pack)(struct clime_dev *d, const struct clime_matrix *w); /* w->packed = w->data in that order */
    /* y[T,N] = x[T,K] w[N,K]^T; out = type of y (dt, or CLIME_F32). CHAIN. */
    void (*gemm)(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                 void *y);
    /* gu[T,2F] = x[T,K] w[2F,K]^T (gate, then up) and h = swiglu(gu): the bits of gemm, then swiglu. */
    void (*gemm_swiglu)(struct clime_dev *d, int T, const void *x, const struct clime_matrix *w, void *gu, void *h);
    /* dx[T,K] = dy[T,N] w[N,K]. CHAIN over N. */
    void (*gemm_dx)(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx);
    /* dw[N,K] = dy[T,N]^T x[T,K], fp32; += with add. ORDER over T; the old dw is added last. */
    void (*gemm_dw)(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw);
    void (*bias)(struct clime_dev *d, int T, int N, void *y, const void *b);        /* y += b. ROW */
    void (*bias_bwd)(struct clime_dev *d, int T, int N, const void *dy, float *db); /* db += column sums. ORDER */

    /* ---- rows --------------------------------------------------------------------------------------------- */
    void (*embed)(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y); /* ROW */
    /* dtable[ids[t]] += dy[t], t ascending, fp32. ORDER */
    void (*embed_bwd)(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy, float *dtable);
    void (*gather)(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x,
                   void *y); /* y[r]=x[rows[r]] */
    /* y[T,D] = 0, then y[rows[r]] = x[r]; rows are distinct. */
    void (*scatter)(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y);

    /* y = x * rstd * w with rstd = 1/sqrt(mean(x^2) + eps), all in fp32, one rounding. rstd[T] may be NULL. ROW
     * (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"). y may alias x. */
    void (*rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y, float *rstd);
    /* sum = x + delta (rounded to dt), y = rmsnorm(sum). sum may alias x or delta. ROW */
    void (*add_rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta, const void *w,
                        void *sum, void *y, float *rstd);
    void (*add)(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y); /* may alias. ROW */
    /* dx = add + d rmsnorm/dx, dw += (ORDER, fp32). add may be NULL (= 0); dx may alias dy or add. */
    void (*rmsnorm_bwd)(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                        const float *rstd, const void *add, void *dx, float *dw);

    /* Splits qkv[T, (H+2HK)*Dh], normalises each head of q and k when q_norm/k_norm [Dh] are given (eps), rotates by
     * pos[t], rounds once to dt and writes q[T,H,Dh] and k, v. packed: slot == NULL, k, v [T,HK,Dh]. paged: k, v are
     * the pools of clime_attn and row t goes to page slot[t]/CLIME_PAGE, place slot[t]%CLIME_PAGE. ROW */
    void (*qkv_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope, float eps,
                     const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos, const int32_t *slot,
                     void *q, void *k, void *v);
    /* Back through the above (packed). dq_norm, dk_norm += (ORDER) or NULL. dqkv = . */
    void (*qkv_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                         float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                         const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm, float *dk_norm);

    /* h[T,F] = silu(gate) * up, gu[T, 2F] = gate | up. ROW */
    void (*swiglu)(struct clime_dev *d, int T, int F, const void *gu, void *h);
    void (*swiglu_bwd)(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu); /* may alias gu */

    /* ---- experts ------------------------------------------------------------------------------------------ */
    /* All are NULL on a device without them. Slot j of row t is its j-th chosen expert. */

    /* scores[T,E] (may alias logits) = softmax or sigmoid of logits[T,E]; of each row the k experts with the largest
     * score + bias, ties by lower id: ids[T,k], ascending; weights[T,k] from their scores alone. All fp32. bias[E] may
     * be NULL. fold[T] (may be NULL) becomes a hash of its old value and the chosen ids; the same on every device.
     * given[T,k] (may be NULL): ids that replace a row's choice, distinct and ascending; a row whose first is negative
     * keeps its own choice. ROW */
    void (*route)(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                  const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold);
    /* dlogits[T,E] (dt) from dweights[T,k]; the choice is treated as constant. ROW */
    void (*route_bwd)(struct clime_dev *d, int T, const struct clime_router *r, const float *scores, const int32_t *ids,
                      const float *dweights, void *dlogits);
    /* Sorts the T*k slots by expert, rows ascending within each: place p is of row from[p], slot (t, j) has place
     * at[t*k + j], expert e has places start[e] .. start[e+1]-1. start[E+1], from[T*k], at[T*k]. */
    void (*permute)(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                    int32_t *from, int32_t *at);
    /* gemm, gemm_dx and gemm_dw of each expert e over its places of R = T*k rows. w has E matrices, and dw[E,N,K];
     * without add, an expert without rows gets zeros. The counts are in device memory only. CHAIN; dw: ORDER over an
     * expert's places. Forward, E may be a range of experts, with start at its first; output in other experts' places
     * is then undefined. */
    void (*grouped_gemm)(struct clime_dev *d, int R, const int32_t *start, const void *x, const struct clime_matrix *w,
                         void *y);
    /* The first half of experts: in[p] = x[from[p]], gu = grouped_gemm(in, w[2F, K]) (gate, then up), h = swiglu(gu),
     * with those bits. in[R, K] is scratch and may be left unchanged. */
    void (*grouped_swiglu)(struct clime_dev *d, int R, const int32_t *start, const int32_t *from, const void *x,
                           const struct clime_matrix *w, void *in, void *gu, void *h);
    void (*grouped_dx)(struct clime_dev *d, int R, const int32_t *start, const void *dy, const struct clime_matrix *w,
                       void *dx);
    void (*grouped_dw)(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w, const void *dy,
                       const void *x, bool add, float *dw);
    /* y[t] = sum over j ascending of weights[t,j] x[at[t*k+j]], then + last_weight[t] last[t]: one fp32 chain, one
     * rounding. weights, last_weight NULL = ones; last NULL = none, else [T,D] and y may alias it. ROW */
    void (*combine)(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights, const void *x,
                    const void *last, const float *last_weight, void *y);
    /* Back through combine and the product before it, x[p] = w_e h[p]: dh[p], the gradient of h without the weight,
     * gives dweights[t,j] = dh[p] . h[p]; then dh[p] and h[p], of F elements each, are multiplied by the weight
     * (grouped_dw of the unweighted gradient and this h is then that of the weighted). at NULL = places are rows, k =
     * 1. ROW */
    void (*combine_bwd)(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                        void *h, float *dweights);

    /* ---- latent attention ----------------------------------------------------------------------------------- */
    /* All are NULL on a device without them. */

    /* gemm, gemm_dx and gemm_dw for each head: y = x w^T, dx = dy w, dw += dy^T x; dy is laid out as y, dx as x, dw as
     * w. CHAIN; dw: ORDER */
    void (*heads_gemm)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                       void *y);
    void (*heads_dx)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                     void *dx);
    void (*heads_dw)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                     float *dw);
    /* Rotates the last Dr of each head of q[T, H, Dn+Dr] by pos[t] into the last Dr of out[T, H, R+Dr]. Of kv[T, R+Dr],
     * normalises the first R (norm[R], eps), rotates the last Dr, and writes the row to k, packed or paged as in
     * qkv_rope. ROW */
    void (*latent_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                        const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                        const int32_t *pos, const int32_t *slot, void *out, void *k);
    /* Back through the above (packed). dnorm += (ORDER) or NULL. dkv = ; writes only the last Dr of each head of dq. */
    void (*latent_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                            const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                            const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv, float *dnorm);

    /* ---- attention ---------------------------------------------------------------------------------------- */
    /* out[T, H*Dh] = causal softmax(scale q k^T) v with q[T,H,Dh]. lse[T,H] (may be NULL) = log-sum-exp of the scaled
     * scores. A row's bits depend on its own q and its keys' positions and bits alone: packed and paged agree. */
    void (*attn)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                 const void *k, const void *v, void *out, float *lse);
    /* Packed only. dq[T,H,Dh], dk, dv[T,HK,Dh] = . One task per (sequence, KV head), query heads in order. ORDER */
    void (*attn_bwd)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                     const void *k, const void *v, const void *out, const float *lse, const void *dout, void *dq,
                     void *dk, void *dv);

    /* ---- head --------------------------------------------------------------------------------------------- */
    /* For each row of logits[R,V] (fp32), z = x * inv_temp[r]: lse[r] = log sum exp z; with targets and logp, logp[r] =
     * z[targets[r]] - lse[r]; entropy[r] = lse - sum p z (NULL = not wanted). inv_temp, targets and the results are
     * device memory. The vocabulary is cut into fixed splits. ROW: the one routine for every log-probability of server
     * and trainer. */
    void (*head_stats)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                       const int32_t *targets, float *lse, float *logp, float *entropy);
    /* logits[r, v] = -inf for every v not in ids[from[r]..from[r + 1]), ascending; head_stats and head_grad then use
     * the distribution over these ids. A row without ids is unchanged. from[R + 1] and ids are host memory, read before
     * it returns; scratch_bytes covers up to CLIME_MAX_KEPT ids per row. ROW */
    void (*head_keep)(struct clime_dev *d, int R, int V, float *logits, const int64_t *from, const int32_t *ids);
    /* dlogits[r*ld + v] (dt) = inv_temp * (g_logp[r] * ([v = target] - p_v) - g_ent[r] * p_v * (log p_v + H_r)): the
     * gradient of sum g_logp*logp + g_ent*entropy. g_ent may be NULL. Device arrays. dlogits may alias logits when
     * ld * sizeof(dt) = V * 4. ROW */
    void (*head_grad)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                      const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                      const float *g_ent, void *dlogits, int64_t ld);
    /* Samples one token per row. p[R] is host memory. Edits (penalties, additions, the mask), then temperature, top-k,
     * top-p, min-p (in that order, each on the ids left by the one before), then one uniform of (seed, position) and an
     * inverse CDF in id order over the remaining ids. Greedy: the largest edited logit, ties by lower id. lse as from
     * head_stats. out[R] and kept are device memory. kept: for each row that wants it, its candidate ids, ascending, at
     * most kept_room, in kept_room places after the previous rows'; NULL when no row does. ROW */
    void (*sample)(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                   const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept);
    /* ids[i] = drawn[rows[i]].id where rows[i] >= 0, for i < n: feeds sampled tokens back as input without the host.
     * Device arrays. ROW */
    void (*take_drawn)(struct clime_dev *d, int n, const int32_t *rows, const struct clime_drawn *drawn, int32_t *ids);
    /* For each of n lists (host memory), contiguous in out (device memory): the n_top largest z - lse of its row,
     * descending (ties by lower id; a row with NaN may have fewer: then id 0 and NaN), then z - lse of its ids, then
     * the rank and z - lse of rank_of. lse[row] as from head_stats. ROW */
    void (*list_logp)(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                      const struct clime_logp_list *lists, struct clime_id_logp *out);

    /* ---- optimizer ---------------------------------------------------------------------------------------- */
    /* Loshchilov & Hutter 2019 (decoupled decay), in torch.optim.AdamW's order: p *= 1 - lr*wd; m, v; p -= lr *
     * (m/correct1) / (sqrt(v/correct2) + eps). params (dt) = rounded master; params == master when dt is fp32. ROW */
    void (*adamw)(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master,
                  float *m, float *v, void *params);
    /* Initial state: m = v = 0, master = params in fp32 (not written where master == params). ROW */
    void (*adamw_start)(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v);
    /* Sums of squares in fp64, of each norm_block elements (the last may have fewer), into host memory; blocks. A
     * block's sum depends on its elements alone, so the sum over all blocks in order has the same bits however they are
     * distributed. */
    void (*sumsq)(struct clime_dev *d, size_t n, const float *x, double *h_sums);
    size_t norm_block;
    /* y += the sum of x[0..n_x), added as a balanced tree: ((0 + 1) + (2 + 3)) + ...; where n_x is no power of two, the
     * missing arrays add nothing. `rows` rows of n elements, y_step elements apart in y and x_step[i] in x[i] (NULL:
     * one row). fp32; n_x is at most CLIME_TREE_MAX. ROW */
    void (*accumulate)(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                       float *y, size_t y_step);
};

extern const struct clime_ops clime_cpu_ops;

/* The table for "cpu", "cuda" or "auto" (cuda if built in and a device is present). kernels/table.c. */
enum clime_err clime_ops_choose(const char *device, const struct clime_ops **out, struct clime_error *e);

static inline const struct clime_dev_head *clime_dev_info(const struct clime_dev *d) {
    return (const struct clime_dev_head *)(const void *)d;
}

#endif
