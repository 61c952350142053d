/* The parameter table: one row per checkpoint tensor, with its place in the flat weight buffer. Each tensor has its own
 * type: places in the buffer are bytes, places in gradients and optimizer states, all fp32, are elements.
 *
 * Rows are in buffer order, the same for server and trainer. q|k|v and gate|up are joined by rows, so every Hugging
 * Face tensor is a contiguous slice, and import, export, checksum, gradients, AdamW and checkpoints are loops over the
 * table. Joined tensors start at multiples of 64 elements of the layout's type; padding is zero.
 *
 * Made by clime_layout_make; a trainer that freezes tensors calls clime_layout_freeze before anything is planned.
 * Immutable afterwards; any thread may read it.
 */
#ifndef CLIME_MODEL_WEIGHTS_LAYOUT_H
#define CLIME_MODEL_WEIGHTS_LAYOUT_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "model/config/config.h"

/* How a tensor is initialised, and whether weight decay may apply. */
enum clime_param_kind { CLIME_PARAM_MATRIX, CLIME_PARAM_NORM, CLIME_PARAM_BIAS };

/* What a training step does with a tensor: nothing, because the user froze it or because it has no gradient, or
 * AdamW. */
enum clime_update { CLIME_FROZEN, CLIME_CONSTANT, CLIME_ADAMW };

/* How a tensor is cut over the devices of a group: always by output rows, never along a sum (docs/devices.md). */
enum clime_shard_rule {
    CLIME_SHARD_WHOLE, /* replicated: norms; the embedding, since a step reads any rows; the router; latent attention's
                        * q_a and kv_a, which all heads read */
    CLIME_SHARD_ROWS,  /* any rows: outputs of o and down, also of each expert's */
    CLIME_SHARD_HEADS, /* rows of whole heads: q, k, v, each on its own; latent attention's kv_b */
    CLIME_SHARD_PAIRS, /* the same rows of gate and of up, so a device has both factors */
    CLIME_SHARD_VOCAB, /* whole units of CLIME_VOCAB_UNIT rows: the head */
    CLIME_SHARD_EXPERT /* on one device: whole experts (clime_layout_whole_experts) */
};

struct clime_slice { /* a row of the table: one Hugging Face tensor */
    char name[96];   /* "model.layers.0.self_attn.q_proj.weight" */
    enum clime_param_kind kind;
    enum clime_dtype type; /* of its elements, in the buffer and in written files */
    int n_dim;
    int64_t dim[2];
    int64_t n;             /* elements */
    int64_t offset, bytes; /* in the buffer */
    bool joined;           /* continues the previous row: one tensor to the kernels */
    bool by_head;          /* read by heads (heads_gemm), never as one matrix */
    bool decay;            /* weight decay applies: matrices; not norms and biases */
    enum clime_update update;
    int64_t grad;  /* in the gradient buffer; -1 = none: it and everything joined with it are frozen */
    int64_t state; /* in each optimizer array (master weights, moments); -1 = frozen */
    struct clime_cut {
        enum clime_shard_rule rule;
        int unit;       /* rows that stay together: the head size, CLIME_VOCAB_UNIT, 1 */
        int stacked;    /* matrices stacked in it, each cut alike: 2 for a gate and up in one tensor */
        bool lent;      /* with fewer units than devices, neighbours share one: k and v */
        int expert, of; /* CLIME_SHARD_EXPERT: expert `expert` of `of`; neighbours are on the same device */
    } cut;
    int n_experts; /* 0; or the number of experts whose matrices are joined from this row on */
};

/* A layer is a mixer and an MLP, each of a kind. */
enum clime_mixer_kind { CLIME_MIXER_ATTENTION, CLIME_MIXER_LATENT };
enum clime_mlp_kind { CLIME_MLP_SWIGLU, CLIME_MLP_EXPERTS };

/* The tensors of a layer as the kernels read them. */
enum clime_layer_weight {
    CLIME_W_LN1,          /* [D] norm before attention */
    CLIME_W_QKV,          /* [(H+2HK)*Dh, D] q|k|v; latent attention: [H*Dh, D or q_rank] q alone */
    CLIME_W_QKV_BIAS,     /* [(H+2HK)*Dh] */
    CLIME_W_Q_NORM,       /* [Dh] */
    CLIME_W_K_NORM,       /* [Dh] */
    CLIME_W_Q_A,          /* [q_rank, D] latent attention: compresses queries */
    CLIME_W_Q_A_NORM,     /* [q_rank] its norm */
    CLIME_W_KV_A,         /* [R+Dr, D] compresses keys and values into the cached row */
    CLIME_W_KV_A_NORM,    /* [R] norm of its latent part */
    CLIME_W_KV_B,         /* [H*(Dn+Dv), R] per head: key and value expansion */
    CLIME_W_O,            /* [D, H*Dh], [D, H*Dv] */
    CLIME_W_O_BIAS,       /* [D] */
    CLIME_W_O_NORM,       /* [D] norm after attention (post_norms) */
    CLIME_W_LN2,          /* [D] norm before the MLP */
    CLIME_W_GU,           /* [2F, D] gate|up */
    CLIME_W_DOWN,         /* [D, F] */
    CLIME_W_DOWN_NORM,    /* [D] norm after the MLP (post_norms) */
    CLIME_W_ROUTER_BIAS,  /* [E] fp32, used for the choice only */
    CLIME_W_ROUTER,       /* [E, D] */
    CLIME_W_EXPERTS_GU,   /* [E, 2F, D] gate|up of each expert */
    CLIME_W_EXPERTS_DOWN, /* [E, D, F] */
    CLIME_W_SHARED_GU,    /* [2F, D] of the shared expert */
    CLIME_W_SHARED_DOWN,  /* [D, F] */
    CLIME_W_SHARED_GATE,  /* [1, D] gate of its output */
    CLIME_W_N
};

struct clime_layer_at {
    enum clime_mixer_kind mixer;
    enum clime_mlp_kind mlp;
    int w[CLIME_W_N]; /* rows of the table, the first of each joined tensor; -1 = the family has none */
};

struct clime_layout {
    enum clime_dtype type;        /* of activations, and the default for tensors */
    int64_t bytes;                /* of the whole buffer, with padding */
    int64_t n_grads, n_states;    /* elements of the gradients, of each optimizer array */
    bool frozen;                  /* some tensors are CLIME_FROZEN */
    int embed, norm, head;        /* rows; head == embed when tied */
    int first_trained;            /* the lowest layer that gradients must reach: 0 for the embedding, L for none */
    struct clime_layer_at *layer; /* [L] */
    int n_layers;
    struct clime_slice *slices; /* in buffer order */
    int n_slices;
    int32_t *by_name; /* hash table of rows, by_name_mask + 1 entries; -1 = empty */
    uint32_t by_name_mask;
    uint64_t hash;       /* of names and shapes; part of the handover hash (model.h) */
    uint64_t state_hash; /* of the same and of what is frozen; must match a checkpoint's states */
};

void clime_layout_make(const struct clime_config *c, enum clime_dtype type, struct clime_layout *out);
void clime_layout_free(struct clime_layout *l);
const struct clime_slice *clime_layout_find(const struct clime_layout *l, const char *hf_name); /* NULL = unknown */

/* Number of parameters, a tied head counted once; trained: only those that a step changes. */
int64_t clime_layout_params(const struct clime_layout *l, bool trained);

/* Freezes the rows marked in frozen[n_slices] and lays out gradients and states anew, without them. A joined tensor
 * with only a part frozen keeps its gradient, since one product makes it. CLIME_ERR_INPUT when nothing is left to
 * train. */
enum clime_err clime_layout_freeze(struct clime_layout *l, const bool *frozen, struct clime_error *e);

/* Cuts experts whole over the devices of a group, instead of by rows. Before sharding. */
void clime_layout_whole_experts(struct clime_layout *l);

/* A run of the buffer's bytes of one type. */
struct clime_typed_run {
    int64_t lo, hi;
    enum clime_dtype type;
};
/* The first run of [lo, hi); false when it is empty. Padding has the type of the tensor before it. */
bool clime_typed_run(const struct clime_layout *l, int64_t lo, int64_t hi, struct clime_typed_run *out);

/* Elements that one call of the optimizer updates: rows contiguous in weights, gradients and states, of one type and
 * with the same decay. */
struct clime_param_span {
    int64_t offset, grad, state, n; /* offset: bytes */
    enum clime_dtype type;
    bool decay;
};
/* The first span at or after row i; returns the row to continue from. out->n is 0 at the end. */
int clime_param_span(const struct clime_layout *l, int i, struct clime_param_span *out);

/* ---- over several devices -------------------------------------------------------------------------------------- */
struct clime_shard_part { /* bytes contiguous in both buffers */
    int slice;
    int64_t global, local, bytes; /* start in the whole buffer; start in the rank's; count */
};

struct clime_shard { /* what one rank of a group holds, in table order */
    struct clime_shard_part *parts;
    int n_parts;   /* one per slice, of 0 bytes where the expert is on another rank; two for a gate and up in one
                    * tensor. The same number on every rank */
    int64_t bytes; /* of the rank's buffer, laid out like the whole: joined tensors joined, the same alignment */
};

/* CLIME_ERR_INPUT, with the sizes that work, when a tensor cannot be cut into n_ranks. */
enum clime_err clime_layout_shard(const struct clime_layout *l, int rank, int n_ranks, struct clime_shard *out,
                                  struct clime_error *e);
void clime_shard_free(struct clime_shard *s);

/* Iterates a shard's part of bytes [offset, offset + bytes) of the whole buffer: from i = clime_shard_first, while
 * clime_shard_cut returns true. Each part is cut to those bytes. */
int clime_shard_first(const struct clime_shard *s, int64_t offset);
bool clime_shard_cut(const struct clime_shard *s, int i, int64_t offset, int64_t bytes, struct clime_shard_part *out);

/* Rows [*from, *to) of the head are the rank's, also where the head is the embedding, which every rank has. */
void clime_layout_head_rows(const struct clime_layout *l, int rank, int n_ranks, int64_t *from, int64_t *to);

/* ---- over the ranks of a trainer ------------------------------------------------------------------------------- */
/* Which rank has which part of what is trained: the sum of its gradients, its master weights and moments. The gradient
 * buffer is cut layer by layer, each layer evenly over the ranks, at whole norm blocks. Every rank has the same amount
 * of each layer, which moves a layer fastest; any number of ranks works, whatever the shapes; and one rank sums each
 * norm block, so the norm has the same bits on any number of ranks. A rank's own parts are contiguous in its own
 * buffer. */
struct clime_part { /* one of `world` ranks; world 1: everything */
    int rank, world;
    int experts;    /* N > 0: each of N neighbours has some experts whole, and the parts follow them. They are cut at
                     * the norm blocks in which a rank's experts end, so where two ranks share a block, one has a few
                     * elements of the other's. Ranks with the same experts share their blocks evenly */
    bool as_shares; /* cut each layer as for the devices of a server, rounded up to norm blocks, instead of evenly: a
                     * rank updates what the same rank of that server computes with, except for a few blocks. Requires
                     * clime_layout_shard */
};

struct clime_range { /* [lo, hi) is the rank's and starts at `at` in its own buffer: gradient elements or weight bytes
                      * */
    int64_t lo, hi, at;
    int rank;
};

struct clime_parts {
    struct clime_part who;
    struct clime_range *ranges; /* ascending, without gaps */
    int n;
    int64_t own; /* elements of this rank's buffer */
};

/* One of a layer's expert tensors with who.experts: rank r has part clime_stay_part. */
struct clime_stay {
    int row;                       /* of the layout */
    int64_t at, bytes, each_bytes; /* of all in the whole buffer; of a part */
    int64_t room;                  /* with the padding before the next tensor */
    int64_t grad, n, each;         /* gradient elements: first, -1 = frozen; of all; of a part */
};
#define CLIME_STAYS 2 /* tensors of a layer */
/* The i-th; false where there is none: a layer without experts, or they are not resident. */
bool clime_layout_stays(const struct clime_layout *l, int layer, int i, struct clime_part who, struct clime_stay *out);
static inline int64_t clime_stay_part(struct clime_part who, int rank) {
    return rank % who.experts;
}

/* Cuts the gradients [0, n_grads) at multiples of `block`. */
void clime_parts_make(struct clime_parts *p, const struct clime_layout *l, size_t block, struct clime_part who);
void clime_parts_free(struct clime_parts *p); /* zero is fine */

/* The first range that ends after `at`; n when there is none. */
int clime_parts_find(const struct clime_parts *p, int64_t at);

/* The part of a range in [lo, hi); false when empty. */
static inline bool clime_range_cut(const struct clime_range *r, int64_t lo, int64_t hi, struct clime_range *out) {
    *out = (struct clime_range){r->lo > lo ? r->lo : lo, r->hi < hi ? r->hi : hi, 0, r->rank};
    out->at = r->at + (out->lo - r->lo);
    return out->lo < out->hi;
}

/* A piece of what is updated, cut at part and layer boundaries. */
struct clime_share {
    int64_t offset;   /* bytes, in the weights */
    int64_t state, n; /* in all states; elements */
    int64_t at;       /* of its gradients in its rank's buffer */
    enum clime_dtype type;
    int range, rank;
    bool decay;
};
/* Drops its first n elements. */
static inline void clime_share_skip(struct clime_share *s, int64_t n) {
    s->offset += n * (int64_t)clime_dtype_bytes(s->type);
    s->state += n;
    s->at += n;
    s->n -= n;
}
/* In table order; the caller frees it. */
struct clime_share *clime_parts_shares(const struct clime_parts *p, const struct clime_layout *l, int *n);

#endif
