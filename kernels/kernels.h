/* The table of operations that server and trainer run on, one per kind of device.
 *
 * Nouns: a `clime_dev` is one device context (CPU thread pool or GPU) with one type for weights and activations (dt);
 * `clime_ops` is what it can do. main chooses once (--device auto|cpu|cuda); nobody else knows which it is. The CPU
 * table is always there and is the oracle of the other tables' tests.
 *
 * Pointers named x, y, w, ... are device memory from ops->alloc (plain memory on the CPU). Work is queued in order;
 * ops->sync waits. Scalars and structs are host memory, read before the call returns. One thread at a time owns a dev.
 *
 * Layout: row-major, rows packed. Letters as in README: T rows (tokens), D hidden, V vocabulary, H query heads,
 * HK key/value heads, Dh head size, F MLP width, L layers, R rows of the head. "dt" = the type of the context.
 *
 * Determinism classes (docs/numerics.md; every operation gives the same bits in every run):
 *   ROW    a row's result depends on that row alone, by a fixed tree: any batch, any position in it
 *   CHAIN  one fp32 accumulator an output, K ascending: any number of rows
 *   ORDER  sums over rows in ascending order: depends on the batch, not on threads or timing
 *
 * "=" overwrites, "+=" accumulates. Inputs and outputs may alias only where said.
 */
#ifndef CLIME_KERNELS_KERNELS_H
#define CLIME_KERNELS_KERNELS_H

#include <stdint.h>

#include "common/err.h"

enum clime_dtype { CLIME_F32, CLIME_BF16 };

/* Of trial_bytes and choose: a product, with what it makes, and its gradients to x and to w. */
enum clime_trial { CLIME_TRIAL_FORWARD, CLIME_TRIAL_FORWARD_F32, CLIME_TRIAL_DX, CLIME_TRIAL_DW };

static inline size_t clime_dtype_bytes(enum clime_dtype t) {
    return t == CLIME_F32 ? 4 : 2;
}

#define CLIME_SHARE_BYTES 64    /* of a handle of shared memory */
#define CLIME_COMM_ID_BYTES 128 /* of a group's id */
#define CLIME_PAGE 64           /* positions in a KV page = keys in one online-softmax block */
#define CLIME_TREE_MAX 64       /* arrays that are added as one tree: the ranks of a group */
#define CLIME_VOCAB_UNIT 16     /* ids whose logits one device of a group computes: whole tiles of a product */

struct clime_dev;   /* each table's own context; begins with struct clime_dev_head */
struct clime_graph; /* recorded work */
struct clime_ops;

struct clime_dev_head {
    const struct clime_ops *ops;
    enum clime_dtype dt;
    char name[64]; /* kind of device and instruction set, recorded with every sample: bits hold within one name */
    char unit[64]; /* which of the host's devices it is: the GPU's UUID, "cpu" */
};

enum clime_links_way {                   /* how GPUs of a group exchange bytes */
                       CLIME_LINKS_AUTO, /* through memory that they map where all of them can, else by NCCL */
                       CLIME_LINKS_MAPPED,
                       CLIME_LINKS_NCCL
};

struct clime_dev_options {
    enum clime_dtype dt;
    int n_threads;      /* CPU: 0 = all cores this process may use */
    const char *isa;    /* CPU: NULL = best; "generic", "avx2", "avx512", "amx" (tests) */
    int gpu;            /* CUDA: device index */
    bool deterministic; /* CUDA: products as the contract has them. false: as the library likes best, which depends on
                         * the number of rows; only to measure what the contract costs */
    enum clime_links_way links; /* CUDA */
};

/* A matrix of weights, as products read it. Host memory; data and packed are the device's. */
struct clime_matrix {
    int N, K;
    const void *data; /* w[N, K] in the type of the context */
    void *packed;     /* the same in the device's own order, filled by pack; NULL: it has none or is not given */
    int n_experts;    /* 0; or of grouped products: so many of them, one behind the other in data, and in packed each by
                       * itself, pack_bytes apart */
    struct { /* of them [from, to), which are not read in data but here, one behind the other; none: from == to */
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
    bool sigmoid;           /* a score is the sigmoid of its logit; else the softmax over all E */
    bool renormalize;       /* the weights of the chosen are divided by their sum */
    float scale;            /* and multiplied by this */
    int n_groups, k_groups; /* experts lie in n_groups of E / n_groups neighbours; only those of the k_groups with the
                             * largest sums of two are chosen from. k_groups == n_groups: no matter */
};

/* Rotary table, fp32, made on the host once and uploaded: cos, sin [max_pos, rot/2]. */
struct clime_rope {
    const float *cos, *sin;
    int max_pos;
    int rot;          /* dimensions of a head that rotate, even, <= Dh */
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + rot/2) */
};

/* Shape of attention, constant for a model. */
struct clime_heads {
    int H, HK, Dh;
    float scale; /* of q.k, usually 1/sqrt(Dh) */
    /* All keys share a component (a bias). A score's gradient is P (dP - delta), and what is wrong with delta then goes
     * the same way from every row and adds up in the gradients of q, k and their biases. dout . out, as delta is
     * usually taken, is wrong by the rounding of out; with this set a bf16 backward sums P dP itself, two products
     * more. */
    bool common_keys;
    /* 0; or values are the first Dv elements of their keys: v is not read, a head of out and of dout has Dv elements,
     * and in dk is all of a key's gradient (dv is not written). */
    int Dv;
};

/* Latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). What is kept of a position is one row, [R elements after a norm |
 * Dr that rotate]: the key of all heads, and its first R their value (clime_heads: HK = 1, Dh = R + Dr, Dv = R). A
 * head's query [Dn | Dr] comes to it through a matrix [Dn, R], its output leaves through one [Dv, R]. */
struct clime_latent {
    int R, Dn, Dr, Dv;
};

/* A product for each head, y = x w^T with w[N, K]: where element 0 of row t of head h lies, in elements. */
struct clime_head_product {
    int H, N, K;
    int x_row, x_head, y_row, y_head; /* from row to row, from head to head */
    int w_head;
};

/* Which rows attend to which keys. The rows of a sequence are consecutive in the batch and consecutive in position.
 * Keys of a sequence come in blocks of CLIME_PAGE positions counted from the start of the sequence.
 *   packed: page_table == NULL; k, v are [T, HK, Dh] rows of this batch; every sequence starts at position 0.
 *   paged:  k, v are pools [n_pages, HK, CLIME_PAGE, Dh]; block b of sequence s is page page_table[s*max_pages + b].
 * A row at position p attends to positions 0..p. Arrays are device memory. h_ copies are host memory with the same
 * values, for planning tiles without a transfer. A paged batch of one row a sequence may leave them out (h_q_start ==
 * NULL): then the plan follows max_len, which no sequence passes, and the same work serves other lengths when it is
 * replayed (CUDA only). */
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

/* A set of token ids: bit id % 32 of word id / 32, so that a row's cost does not depend on how many there are. */
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
    int64_t position; /* absolute position of the token that is drawn */
    float inv_temp;   /* clime_inv_temp; 1 when greedy */
    bool greedy;
    int32_t top_k; /* <= 0: off */
    float top_p;   /* >= 1: off */
    float min_p;   /* <= 0: off */
    /* In this order; host memory. */
    const uint32_t *seen; /* [clime_id_words(V)] of these x = x > 0 ? x / repetition : x * repetition; NULL = of none */
    float repetition;
    int32_t n_edits;
    const struct clime_logit_edit *edits; /* each id once */
    const uint32_t *allowed;              /* [clime_id_words(V)] no other id is drawn; NULL = all may be */
    int32_t kept_room;                    /* most ids to list of those that may be drawn; 0 = no list is wanted */
};

static inline bool clime_sampling_edits(const struct clime_sampling *p) { /* the logits, before the draw */
    return p->seen || p->n_edits > 0 || p->allowed;
}

#define CLIME_LIST_TOP 1024 /* most n_top of a list */
#define CLIME_MAX_KEPT 4096 /* ids of one row's set (sample, head_keep) */

/* Which log-probabilities of a row are wanted besides the drawn token's: the n_top largest, then those of chosen ids,
 * then the rank of one. */
struct clime_logp_list {
    int32_t row;
    float inv_temp;
    int32_t n_top, n_ids;
    const int32_t *ids; /* host memory */
    bool ranked;        /* one more entry: id is the rank of rank_of, 1 for the largest, lower ids first among equals */
    int32_t rank_of;
};
static inline size_t clime_logp_list_entries(const struct clime_logp_list *l) {
    return (size_t)(l->n_top + l->n_ids + l->ranked);
}

struct clime_id_logp {
    int32_t id;
    float logp;
};

/* What logits are multiplied by for a temperature T > 0, wherever a log-probability is computed: the inverse of the
 * float nearest to T. Server and trainer hold T as a double, a float or text with enough digits of either; the float is
 * the same, so its inverse is. (The inverse of the double rounds to another float at 37 of the 200 T from 0.01
 * to 2.00.) */
static inline float clime_inv_temp(double temperature) {
    return 1.0f / (float)temperature;
}

struct clime_drawn {
    int32_t id;
    float logp;     /* log softmax(x * inv_temp)[id] of the unedited logits: the number of docs/numerics.md */
    float logp_cut; /* of the distribution that was drawn from (edited, truncated, renormalised); 0 when greedy */
    bool bad;       /* the row held a NaN or no finite logit; id is 0 */
    int32_t
        n_kept; /* ids that could have been drawn, where their list is wanted; it may be more than there is room for */
};

struct clime_adamw {
    float lr, beta1, beta2, eps, weight_decay; /* weight_decay 0 for norms and biases: the caller's choice per range */
    float correct1, correct2;                  /* 1 - beta^t */
    float grad_scale;                          /* clip factor, multiplies the gradient first */
};

/* The largest arguments of the calls of a trainer, or, where n_seq is not 0, of a server, for scratch_bytes. */
struct clime_scratch_shape {
    int T, D; /* rows of a micro-batch or a step, hidden width */
    int R, V; /* rows of a chunk of the head or of a block of draws */
    struct clime_heads heads;
    size_t n;           /* a trainer's weights */
    int n_seq, max_len; /* a server's sequences of a step, and keys of the longest */
};

struct clime_comm; /* one process's end of a group; each table's own */

struct clime_group; /* common/group/group.h */
struct clime_links; /* kernels/links.h */
struct clime_move;

struct clime_comm_part {
    void *at;
    size_t bytes;
};

struct clime_comm_wait { /* how long a group waits for its others */
    int64_t limit_us;
    bool (*cancelled)(void *arg); /* NULL = never; asked often */
    void *arg;
};

struct clime_ops {
    const char *name;  /* "cpu", "cuda" */
    bool f32;          /* a context may have dt CLIME_F32; every table has CLIME_BF16 */
    size_t head_bytes; /* of a chunk of fp32 logits in training: enough rows to use the device well */
    /* The device's memory is its own: what is free is all there is, and a plan beyond it must not begin. Otherwise it
     * is the machine's, where caches give way and a hypervisor may add some. */
    bool own_memory;
    bool queues;       /* what is called runs while the host goes on; false: it has run when the call returns */
    size_t code_bytes; /* device memory that goes to kernels' code and a library's own needs as they are first used */

    /* ---- context and memory ------------------------------------------------------------------------------- */
    enum clime_err (*open)(const struct clime_dev_options *o, struct clime_dev **out, struct clime_error *e);
    void (*close)(struct clime_dev *d);
    /* CLIME_ERR_LIMIT naming what, when memory is exhausted. 256-byte aligned, not zeroed. */
    enum clime_err (*alloc)(struct clime_dev *d, size_t bytes, const char *what, void **out, struct clime_error *e);
    void (*free)(struct clime_dev *d, void *p);
    void (*copy_in)(struct clime_dev *d, void *dst, const void *h_src, size_t bytes);  /* h_src is free to reuse */
    void (*copy_out)(struct clime_dev *d, void *h_dst, const void *src, size_t bytes); /* waits: h_dst is filled */
    void (*copy)(struct clime_dev *d, void *dst, const void *src, size_t bytes);
    /* n rows of so many bytes, as far from each other as the steps say (bytes; each at least a row). */
    void (*copy_rows)(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                      size_t src_step);
    void (*zero)(struct clime_dev *d, void *p, size_t bytes);
    /* Host memory that the device reads and writes by itself, and copies of it that run while the host goes on.
     * copy_out_start fills h_dst by the time copy_wait of its mark (0 or 1) returns, which reports failures as sync
     * does; h_src of copy_in_start (and of its form by rows) is free when a copy_out_start that came after it was
     * waited for, or at sync. */
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
    /* Scratch of the operations themselves: at most this much for calls up to a shape (0 = little, and not in the
     * device's memory), and taking it beforehand, so that no step allocates. */
    size_t (*scratch_bytes)(const struct clime_scratch_shape *s);
    /* Memory that gemm takes for a moment at the first product of a shape of up to T rows, to choose how it computes;
     * where it lacks, a slow way computes until there is some. T, N, K: of the forward product y[T,N] = x[T,K] w^T. */
    size_t (*trial_bytes)(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
    /* Makes these choices for all numbers of rows up to T now, so that no step stops for one. */
    void (*choose)(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
    enum clime_err (*reserve_scratch)(struct clime_dev *d, size_t bytes, struct clime_error *e);

    /* ---- recorded work -------------------------------------------------------------------------------------- */
    /* Between graph_begin and graph_end, operations that touch device memory alone (products, rows, attention without
     * h_ arrays, head_stats) are recorded instead of queued; the same calls must have run once before. graph_launch
     * queues them all with the addresses and sizes they were recorded with. NULL where the device gains nothing by
     * it. graph_end: CLIME_ERR_LIMIT when memory for it lacks; then nothing was recorded and nothing is lost. */
    void (*graph_begin)(struct clime_dev *d);
    enum clime_err (*graph_end)(struct clime_dev *d, struct clime_graph **out, struct clime_error *e);
    void (*graph_launch)(struct clime_dev *d, struct clime_graph *g);
    void (*graph_free)(struct clime_dev *d, struct clime_graph *g);

    /* ---- memory that processes of one host share ------------------------------------------------------------ */
    /* As alloc, for memory that share_export may be asked for; free frees it. */
    enum clime_err (*alloc_shared)(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                   struct clime_error *e);
    /* The handle by which other processes map the whole of p (from alloc_shared). Valid while p is. */
    enum clime_err (*share_export)(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                   struct clime_error *e);
    /* Maps what another process exported, at least bytes of it; it is only read. *same_unit: the memory is this very
     * device's own. CLIME_ERR_INPUT when the handle names nothing of that size that this device can reach. */
    enum clime_err (*share_open)(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                 bool *same_unit, void **out, struct clime_error *e);
    void (*share_close)(struct clime_dev *d, void *p);
    /* Waits until the exporter's queue has come to the event of that handle, at most limit_us (CLIME_ERR_TIMEOUT). NULL
     * where nothing is queued. */
    enum clime_err (*share_wait)(struct clime_dev *d, const uint8_t event[CLIME_SHARE_BYTES], int64_t limit_us,
                                 struct clime_error *e);
    /* Sum over 8-byte words (the last padded with zeros) of a mixture of word and index, the first word's being
     * `first`: of a buffer it is the sum of its parts'. p: of whole words. Waits. The same on every device: both sides
     * of a copy compare it. */
    uint64_t (*checksum)(struct clime_dev *d, uint64_t first, size_t bytes, const void *p);
    /* Neither NaN nor infinite, all n numbers of the type; waits. */
    bool (*finite)(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x);
    /* The calling thread takes the context over from the one that opened it. */
    void (*bind)(struct clime_dev *d);

    /* ---- memory that can be given back while its address stays (recorded work goes on to be valid) ----------- */
    /* As alloc; free frees it, given back or not. */
    enum clime_err (*alloc_fixed)(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                  struct clime_error *e);
    void (*give_back)(struct clime_dev *d, void *p); /* waits; the bytes are free for others, p must not be touched */
    /* Other bytes at the same address, not zeroed. CLIME_ERR_LIMIT: there are none, nothing has changed. */
    enum clime_err (*take_back)(struct clime_dev *d, void *p, struct clime_error *e);

    /* ---- groups of processes that own a device each --------------------------------------------------------- */
    /* Every wait in them ends: with CLIME_ERR_TIMEOUT at the limit, with CLIME_ERR_ABORTED when cancelled, with
     * CLIME_ERR_UNAVAILABLE when a peer is lost. After an error only comm_close may follow. */
    const char *comm_backend; /* "nccl"; "socket" between CPUs */
    /* Made by rank 0, given to all. CLIME_ERR_UNAVAILABLE: the library is not there. */
    enum clime_err (*comm_id)(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e);
    /* Returns when all `world` ranks have called it. d gives the device; the group has a queue of its own. */
    enum clime_err (*comm_open)(struct clime_dev *d, const uint8_t id[CLIME_COMM_ID_BYTES], int rank, int world,
                                const struct clime_comm_wait *wait, struct clime_comm **out, struct clime_error *e);
    /* From rank 0's parts to all others' of the same sizes, one transfer each; done when it returns. */
    enum clime_err (*comm_broadcast)(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                     const struct clime_comm_wait *wait, struct clime_error *e);
    /* Takes part in an all-reduce of one float, with which the groups of vLLM's trainers begin; the sum is not used. */
    enum clime_err (*comm_greet)(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e);
    void (*comm_close)(struct clime_comm *c); /* does not wait for the others; NULL is fine */

    /* ---- links between the devices of a group (kernels/links.h says what they do; called from there alone) ---- */
    size_t (*links_bytes)(int world); /* of the device's memory that open takes, at most */
    enum clime_err (*links_open)(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                 struct clime_error *e);
    /* NULL: whatever is put goes as other bytes do. */
    enum clime_err (*links_window)(struct clime_links *l, void *at, size_t bytes, struct clime_error *e);
    enum clime_err (*links_begin)(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                                  int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                                  struct clime_error *e);
    void (*links_end)(struct clime_links *l, uint32_t number);
    void (*links_close)(struct clime_links *l);
    /* NULL where links do not record (clime_links_gather_rows). mine: this rank's T rows of its columns. */
    void (*links_rows)(struct clime_links *l, const char *what, int root, int T, const size_t *at, const void *mine,
                       void *y);
    /* As clime_links_home; NULL where links do not record. */
    void (*links_home)(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start, int each,
                       const void *rows, void *y);
    /* What an all-gather of columns leaves becomes rows: y[T] rows of at[n] bytes, of which part r has bytes
     * [at[r], at[r+1]); parts lie one behind the other, each with its T rows. at: [n + 1] host memory. ROW. NULL where
     * there are no links. */
    void (*join_columns)(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y);

    /* ---- matrix products ---------------------------------------------------------------------------------- */
    /* A device may want weights in its own order as well. 0 = it does not, and `packed` is ignored everywhere. */
    size_t (*pack_bytes)(struct clime_dev *d, int N, int K);
    void (*pack)(struct clime_dev *d, const struct clime_matrix *w); /* w->packed = w->data in that order */
    /* y[T,N] = x[T,K] w[N,K]^T; out = type of y (dt, or CLIME_F32). CHAIN. */
    void (*gemm)(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                 void *y);
    /* gu[T,2F] = x[T,K] w[2F,K]^T (gate, then up) and h = swiglu(gu): the bits of gemm and swiglu, one after the other.
     */
    void (*gemm_swiglu)(struct clime_dev *d, int T, const void *x, const struct clime_matrix *w, void *gu, void *h);
    /* dx[T,K] = dy[T,N] w[N,K]. CHAIN over N. */
    void (*gemm_dx)(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx);
    /* dw[N,K] = dy[T,N]^T x[T,K], fp32, and with add +=. ORDER over T; what was in dw is added last. */
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
    /* A device that lacks these has NULL in all of them. In all, slot j of row t is its j-th chosen expert. */

    /* scores[T,E] (may alias logits) = softmax or sigmoid of logits[T,E]; of each row the k experts with the largest
     * score + bias, lowest id first among equals: ids[T,k], ascending; weights[T,k] from their scores alone. All fp32.
     * bias[E] may be NULL. fold[T] (may be NULL): becomes a hash of
     * what it was and of the chosen; the same on every device. given[T,k] (may be NULL): ids that take the place of a
     * row's choice, distinct and ascending; a row whose first is negative chooses itself. ROW */
    void (*route)(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                  const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold);
    /* dlogits[T,E] (dt) from dweights[T,k]; which were chosen is a constant. ROW */
    void (*route_bwd)(struct clime_dev *d, int T, const struct clime_router *r, const float *scores, const int32_t *ids,
                      const float *dweights, void *dlogits);
    /* Sorts the T*k slots by expert, rows ascending within one: place p is of row from[p], slot (t, j) has the place
     * at[t*k + j], expert e has the places start[e] .. start[e+1]-1. start[E+1], from[T*k], at[T*k]. */
    void (*permute)(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                    int32_t *from, int32_t *at);
    /* gemm, gemm_dx and gemm_dw of each expert e over its places of R = T*k rows; w has E matrices, and dw[E,N,K],
     * which becomes zeros of an expert without rows where nothing is to be added to. The counts are the device's alone.
     * CHAIN; dw: ORDER over an expert's places. Forward, E may be some neighbouring experts alone, start where theirs
     * begin: what is written in places of others means nothing. */
    void (*grouped_gemm)(struct clime_dev *d, int R, const int32_t *start, const void *x, const struct clime_matrix *w,
                         void *y);
    /* The first half of experts: in[p] = x[from[p]], gu = grouped_gemm of in and w[2F, K] (gate, then up), h =
     * swiglu(gu), with those bits. in[R, K] is room that may stay as it was. */
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
    /* Back through combine to what its rows were made of, x[p] = w_e h[p]: dh[p], the gradient of h without the
     * weight, gives dweights[t,j] = dh[p] . h[p]; then dh[p] and h[p], of F elements each, are multiplied by the weight
     * (so that grouped_dw of the unweighted gradient and this h is that of the weighted). at NULL = places are rows,
     * k = 1. ROW */
    void (*combine_bwd)(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                        void *h, float *dweights);

    /* ---- latent attention ----------------------------------------------------------------------------------- */
    /* A device that lacks these has NULL in all of them. */

    /* gemm, gemm_dx and gemm_dw for each head: y = x w^T, dx = dy w, dw += dy^T x; dy lies as y, dx as x, dw as w.
     * CHAIN; dw: ORDER */
    void (*heads_gemm)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                       void *y);
    void (*heads_dx)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                     void *dx);
    void (*heads_dw)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                     float *dw);
    /* Of q[T, H, Dn+Dr] each head's last Dr are rotated by pos[t] into the last Dr of out[T, H, R+Dr]; of kv[T, R+Dr]
     * the first R are normalised (norm[R], eps), the last Dr rotated, and the row goes to k: packed or paged as in
     * qkv_rope. ROW */
    void (*latent_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                        const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                        const int32_t *pos, const int32_t *slot, void *out, void *k);
    /* Back through the above (packed). dnorm += (ORDER) or NULL. dkv = , and of dq each head's last Dr = . */
    void (*latent_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                            const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                            const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv, float *dnorm);

    /* ---- attention ---------------------------------------------------------------------------------------- */
    /* out[T, H*Dh] = causal softmax(scale q k^T) v with q[T,H,Dh]. lse[T,H] (may be NULL) = log-sum-exp of the scaled
     * scores. A row's bits depend on its own q and its keys' positions and bits alone: packed and paged agree. */
    void (*attn)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                 const void *k, const void *v, void *out, float *lse);
    /* Packed only. dq[T,H,Dh], dk, dv[T,HK,Dh] = . One task a (sequence, KV head), query heads in order. ORDER */
    void (*attn_bwd)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                     const void *k, const void *v, const void *out, const float *lse, const void *dout, void *dq,
                     void *dk, void *dv);

    /* ---- head --------------------------------------------------------------------------------------------- */
    /* For each row of logits[R,V] (fp32), z = x * inv_temp[r]: lse[r] = log sum exp z; where targets and logp are
     * given, logp[r] = z[targets[r]] - lse[r]; entropy[r] = lse - sum p z (NULL = not wanted). inv_temp, targets and
     * the results are device memory. The vocabulary is cut into fixed splits. ROW: the one routine behind every
     * log-probability of server and trainer. */
    void (*head_stats)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                       const int32_t *targets, float *lse, float *logp, float *entropy);
    /* logits[r, v] = -inf for every v that is not among ids[from[r]..from[r + 1]), which ascend: head_stats and
     * head_grad are then of the distribution over these. A row without any stays as it is. from[R + 1] and ids are host
     * memory, used up when it returns; up to CLIME_MAX_KEPT ids a row are planned for in scratch_bytes. ROW */
    void (*head_keep)(struct clime_dev *d, int R, int V, float *logits, const int64_t *from, const int32_t *ids);
    /* dlogits[r*ld + v] (dt) = inv_temp * (g_logp[r] * ([v = target] - p_v) - g_ent[r] * p_v * (log p_v + H_r)): the
     * gradient of sum g_logp*logp + g_ent*entropy. g_ent may be NULL. Device arrays. dlogits may alias logits when
     * ld * sizeof(dt) = V * 4. ROW */
    void (*head_grad)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                      const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                      const float *g_ent, void *dlogits, int64_t ld);
    /* Draws one token a row. p[R] is host memory. Edits (penalties, additions, the mask), then temperature, top-k,
     * top-p, min-p (in that order, each on what the one before kept), then one uniform of (seed, position) and an
     * inverse CDF in id order over the kept set. Greedy: the largest edited logit, the lowest id among equals. lse as
     * from head_stats. out[R] is device memory, and so is kept: of each row that wants it the ids that it could have
     * drawn, ascending, the first kept_room of them, in kept_room places behind those of the rows before; NULL where no
     * row does. ROW */
    void (*sample)(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                   const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept);
    /* ids[i] = drawn[rows[i]].id where rows[i] >= 0, for i < n: what was drawn becomes input without a way over the
     * host. Device arrays. ROW */
    void (*take_drawn)(struct clime_dev *d, int n, const int32_t *rows, const struct clime_drawn *drawn, int32_t *ids);
    /* For each of n lists (host memory), one behind the other in out (device memory): the n_top largest z - lse of its
     * row, descending (lowest id first among equals; a row with NaN may have fewer: then id 0 and NaN), then z - lse of
     * its ids, then the rank and z - lse of rank_of. lse[row] as from head_stats. ROW */
    void (*list_logp)(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                      const struct clime_logp_list *lists, struct clime_id_logp *out);

    /* ---- optimizer ---------------------------------------------------------------------------------------- */
    /* Loshchilov & Hutter 2019 (decoupled decay), as torch.optim.AdamW orders it: p *= 1 - lr*wd; m, v; p -= lr *
     * (m/correct1) / (sqrt(v/correct2) + eps). params (dt) = rounded master; params == master when dt is fp32. ROW */
    void (*adamw)(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master,
                  float *m, float *v, void *params);
    /* What it begins with: m = v = 0, master = params in fp32 (not written where master == params). ROW */
    void (*adamw_start)(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v);
    /* Sums of squares in fp64, of each norm_block elements (the last may have fewer), into host memory; waits. A
     * block's sum depends on its elements alone, so the sum over all blocks in order is the same bits whoever has
     * which. */
    void (*sumsq)(struct clime_dev *d, size_t n, const float *x, double *h_sums);
    size_t norm_block;
    /* y += the sum of x[0..n_x), added as a balanced tree: ((0 + 1) + (2 + 3)) + ...; where n_x is no power of two,
     * what is missing at the end adds nothing. So many rows of n elements; a row of y lies y_step elements behind the
     * one before, of x[i] x_step[i] (NULL: there is one row). fp32; n_x is CLIME_TREE_MAX at most. ROW */
    void (*accumulate)(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                       float *y, size_t y_step);
};

extern const struct clime_ops clime_cpu_ops;

/* The table for "cpu", "cuda" or "auto" (cuda where built in and a device answers). kernels/table.c. */
enum clime_err clime_ops_choose(const char *device, const struct clime_ops **out, struct clime_error *e);

static inline const struct clime_dev_head *clime_dev_info(const struct clime_dev *d) {
    return (const struct clime_dev_head *)(const void *)d;
}

#endif
