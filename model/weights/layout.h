/* The parameter table: one row a tensor of the checkpoint, and the flat buffer of weights that the rows cut up. Each
 * tensor has a type of its own, so places in the buffer are bytes; gradients and optimizer states are fp32, and places
 * in them are elements.
 *
 * The order of the rows is that of the buffer, the same for server and trainer. q|k|v and gate|up are joined by rows,
 * so every Hugging Face tensor is a contiguous slice, and import, export, checksum, gradients, AdamW and checkpoints
 * are loops over the table. Every joined tensor starts at a multiple of 64 elements of the layout's type; the padding
 * is zero.
 *
 * Made once, by clime_layout_make; a trainer that freezes tensors says so before anything is planned
 * (clime_layout_freeze). From then on immutable; any thread may read it.
 */
#ifndef CLIME_MODEL_WEIGHTS_LAYOUT_H
#define CLIME_MODEL_WEIGHTS_LAYOUT_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "model/config/config.h"

/* How a tensor begins, and what an optimizer may do with it. */
enum clime_param_kind { CLIME_PARAM_MATRIX, CLIME_PARAM_NORM, CLIME_PARAM_BIAS };

/* What a training step does with a tensor: the kind of optimizer, or nothing, because it was told so or because nothing
 * has a gradient for it. */
enum clime_update { CLIME_FROZEN, CLIME_CONSTANT, CLIME_ADAMW };

/* How a tensor is cut over the devices of a group: always by output rows, never through a sum (docs/devices.md). */
enum clime_shard_rule {
    CLIME_SHARD_WHOLE, /* every device has all of it: norms; the embedding, of which a step reads any rows; the router;
                        * what latent attention's queries come through and what it keeps, which all heads read */
    CLIME_SHARD_ROWS,  /* any rows: outputs of o and down, of each expert's too */
    CLIME_SHARD_HEADS, /* rows of whole heads: q, k, v, each its own; latent attention's kv_b */
    CLIME_SHARD_PAIRS, /* rows of gate and of up alike: a device has both of what it multiplies */
    CLIME_SHARD_VOCAB, /* rows of whole CLIME_VOCAB_UNIT: the head */
    CLIME_SHARD_EXPERT /* all of it on one device: experts that stay whole (clime_layout_whole_experts) */
};

struct clime_slice { /* a row of the table: one Hugging Face tensor */
    char name[96];   /* "model.layers.0.self_attn.q_proj.weight" */
    enum clime_param_kind kind;
    enum clime_dtype type; /* of its elements, in the buffer and in files that are written */
    int n_dim;
    int64_t dim[2];
    int64_t n;             /* elements */
    int64_t offset, bytes; /* its place in the buffer */
    bool joined;           /* it goes on where the row before it ends: one tensor to the kernels */
    bool by_head;          /* read head by head (heads_gemm), never as one matrix */
    bool decay;            /* weight decay applies: matrices; not norms and biases */
    enum clime_update update;
    int64_t grad;  /* in the buffer of gradients; -1 = there is none: it and all that it is joined with are frozen */
    int64_t state; /* in each of the optimizer's arrays (master weights, moments); -1 = frozen */
    struct clime_cut {
        enum clime_shard_rule rule;
        int unit;    /* rows that stay together: the head size, CLIME_VOCAB_UNIT, 1 */
        int stacked; /* matrices that lie one on the other in it, each cut alike: 2 for a gate and up in one tensor */
        bool lent;   /* where there are fewer units than devices, neighbours have the same one: k and v */
        int expert, of; /* CLIME_SHARD_EXPERT: which of how many; neighbours lie on the same device */
    } cut;
    int n_experts; /* 0; or with what is joined to it the matrices of so many experts, of which it is the first */
};

/* A layer is a mixer of positions and an MLP, each of a kind. */
enum clime_mixer_kind { CLIME_MIXER_ATTENTION, CLIME_MIXER_LATENT };
enum clime_mlp_kind { CLIME_MLP_SWIGLU, CLIME_MLP_EXPERTS };

/* The tensors of a layer as the kernels read them. */
enum clime_layer_weight {
    CLIME_W_LN1,          /* [D] norm before attention */
    CLIME_W_QKV,          /* [(H+2HK)*Dh, D] q|k|v; of latent attention [H*Dh, D or q_rank] q alone */
    CLIME_W_QKV_BIAS,     /* [(H+2HK)*Dh] */
    CLIME_W_Q_NORM,       /* [Dh] */
    CLIME_W_K_NORM,       /* [Dh] */
    CLIME_W_Q_A,          /* [q_rank, D] latent attention: the row that queries come through, */
    CLIME_W_Q_A_NORM,     /* [q_rank] its norm, */
    CLIME_W_KV_A,         /* [R+Dr, D] the row that is kept, */
    CLIME_W_KV_A_NORM,    /* [R] the norm of its latent part, */
    CLIME_W_KV_B,         /* [H*(Dn+Dv), R] of each head what its query and its output pass */
    CLIME_W_O,            /* [D, H*Dh], [D, H*Dv] */
    CLIME_W_O_BIAS,       /* [D] */
    CLIME_W_O_NORM,       /* [D] norm after attention (post_norms) */
    CLIME_W_LN2,          /* [D] norm before the MLP */
    CLIME_W_GU,           /* [2F, D] gate|up */
    CLIME_W_DOWN,         /* [D, F] */
    CLIME_W_DOWN_NORM,    /* [D] norm after the MLP (post_norms) */
    CLIME_W_ROUTER_BIAS,  /* [E] fp32, of the choice */
    CLIME_W_ROUTER,       /* [E, D] */
    CLIME_W_EXPERTS_GU,   /* [E, 2F, D] gate|up of each expert */
    CLIME_W_EXPERTS_DOWN, /* [E, D, F] */
    CLIME_W_SHARED_GU,    /* [2F, D] of the expert that all rows go to */
    CLIME_W_SHARED_DOWN,  /* [D, F] */
    CLIME_W_SHARED_GATE,  /* [1, D] of the weight of its output */
    CLIME_W_N
};

struct clime_layer_at {
    enum clime_mixer_kind mixer;
    enum clime_mlp_kind mlp;
    int w[CLIME_W_N]; /* rows of the table, the first of each joined tensor; -1 = the family has none */
};

struct clime_layout {
    enum clime_dtype type;        /* of activations, and of every tensor that does not say otherwise */
    int64_t bytes;                /* of the whole buffer, padding included */
    int64_t n_grads, n_states;    /* elements of the gradients, of each optimizer array */
    bool frozen;                  /* some tensors are CLIME_FROZEN */
    int embed, norm, head;        /* rows; head == embed when tied */
    int first_trained;            /* the lowest layer that gradients must reach: 0 for the embedding, L for none */
    struct clime_layer_at *layer; /* [L] */
    int n_layers;
    struct clime_slice *slices; /* in buffer order */
    int n_slices;
    int32_t *by_name; /* hash table of rows, by_name_mask + 1 places; -1 = free */
    uint32_t by_name_mask;
    uint64_t hash;       /* of names and shapes; a part of a handover's (model.h) */
    uint64_t state_hash; /* of the same and of what is frozen; a checkpoint's states belong to it */
};

void clime_layout_make(const struct clime_config *c, enum clime_dtype type, struct clime_layout *out);
void clime_layout_free(struct clime_layout *l);
const struct clime_slice *clime_layout_find(const struct clime_layout *l, const char *hf_name); /* NULL = unknown */

/* Number of parameters, a tied head counted once; with trained, of what a step changes. */
int64_t clime_layout_params(const struct clime_layout *l, bool trained);

/* frozen[n_slices]: rows that no step changes. Gradients and states are laid out anew, without them; a joined tensor of
 * which only a part is frozen keeps its gradient, since one product makes it. CLIME_ERR_INPUT when nothing is left to
 * train. */
enum clime_err clime_layout_freeze(struct clime_layout *l, const bool *frozen, struct clime_error *e);

/* Of experts each device of a group has some whole, instead of rows of all. Before anything is shared out. */
void clime_layout_whole_experts(struct clime_layout *l);

/* A run of the buffer's bytes whose numbers are all of one type. */
struct clime_typed_run {
    int64_t lo, hi;
    enum clime_dtype type;
};
/* The first of [lo, hi), from lo on; false when it is empty. What lies between tensors is of the one before. */
bool clime_typed_run(const struct clime_layout *l, int64_t lo, int64_t hi, struct clime_typed_run *out);

/* A span of elements that one call of the optimizer updates: rows that follow each other in the weights, in the
 * gradients and in the states, of one type and with the same decay. */
struct clime_param_span {
    int64_t offset, grad, state, n; /* offset: bytes */
    enum clime_dtype type;
    bool decay;
};
/* The first span at or after row i; returns the row to go on from. out->n is 0 when there are no more. */
int clime_param_span(const struct clime_layout *l, int i, struct clime_param_span *out);

/* ---- over several devices -------------------------------------------------------------------------------------- */
struct clime_shard_part { /* bytes that lie together in both buffers */
    int slice;
    int64_t global, local, bytes; /* from, in the whole buffer; to, in the rank's; how many */
};

struct clime_shard { /* what one rank of a group holds, in the order of the table */
    struct clime_shard_part *parts;
    int n_parts;   /* one a slice, of no bytes where the expert is another rank's; two for a gate and up that are one
                    * tensor. The same of every rank */
    int64_t bytes; /* of the rank's buffer, laid out as the whole is: joined tensors joined, the same alignment */
};

/* CLIME_ERR_INPUT, with the sizes that would do, when a tensor cannot be cut into n_ranks. */
enum clime_err clime_layout_shard(const struct clime_layout *l, int rank, int n_ranks, struct clime_shard *out,
                                  struct clime_error *e);
void clime_shard_free(struct clime_shard *s);

/* What a shard holds of bytes [offset, offset + bytes) of the whole buffer: parts i from clime_shard_first on, as long
 * as clime_shard_cut gives them, each cut to those bytes. */
int clime_shard_first(const struct clime_shard *s, int64_t offset);
bool clime_shard_cut(const struct clime_shard *s, int i, int64_t offset, int64_t bytes, struct clime_shard_part *out);

/* Rows [*from, *to) of the head are the rank's, also where they lie in an embedding that every rank has. */
void clime_layout_head_rows(const struct clime_layout *l, int rank, int n_ranks, int64_t *from, int64_t *to);

/* ---- over the ranks of a trainer ------------------------------------------------------------------------------- */
/* Which rank has which part of what is trained: whose sum of gradients, whose master weights and moments. The buffer of
 * gradients is cut layer by layer, and each layer evenly over the ranks, at whole blocks of the norm. So every rank has
 * as much of each layer as the others, which is what moves a layer fastest between them; any number of ranks has such
 * parts, whatever the shapes; and each block of the norm is summed by one rank, so the norm is the same bits on any
 * number of them. A rank's own parts lie behind each other in a buffer of its own. */
struct clime_part { /* of world ranks, this one's; world 1: all */
    int rank, world;
    int experts;    /* N > 0: of N neighbours each has some experts whole, and the parts follow them: cut at the blocks
                     * in which one's end, so that of a block which two of them share one has a few elements of the
                     * other's. Ranks that have the same experts share their blocks evenly */
    bool as_shares; /* each layer is cut as over the devices of a server, to the next block of the norm, and not evenly
                     * as a whole: what a rank updates is what that server's rank computes with, but for a few blocks.
                     * Only where clime_layout_shard can */
};

struct clime_range { /* [lo, hi) is the rank's, and begins in its own buffer at `at`: of gradients elements, of weights
                        bytes */
    int64_t lo, hi, at;
    int rank;
};

struct clime_parts {
    struct clime_part who;
    struct clime_range *ranges; /* ascending, without gaps */
    int n;
    int64_t own; /* elements of this rank's buffer */
};

/* With who.experts one of the tensors of a layer's experts: rank r's are part clime_stay_part. */
struct clime_stay {
    int row;                       /* of the layout */
    int64_t at, bytes, each_bytes; /* of all in the whole buffer, and of a part; */
    int64_t room;                  /* and with what lies between them and the next tensor */
    int64_t grad, n, each;         /* elements of the gradients: where the first is, -1 = they are frozen; how many */
};
#define CLIME_STAYS 2 /* tensors of a layer */
/* The i-th; false where there is none: a layer without experts, or they do not stay. */
bool clime_layout_stays(const struct clime_layout *l, int layer, int i, struct clime_part who, struct clime_stay *out);
static inline int64_t clime_stay_part(struct clime_part who, int rank) {
    return rank % who.experts;
}

/* Of the gradients [0, n_grads), cut at multiples of `block`. */
void clime_parts_make(struct clime_parts *p, const struct clime_layout *l, size_t block, struct clime_part who);
void clime_parts_free(struct clime_parts *p); /* zero is fine */

/* The first range that ends behind `at`; n when there is none. */
int clime_parts_find(const struct clime_parts *p, int64_t at);

/* What a range has of [lo, hi): false when nothing. */
static inline bool clime_range_cut(const struct clime_range *r, int64_t lo, int64_t hi, struct clime_range *out) {
    *out = (struct clime_range){r->lo > lo ? r->lo : lo, r->hi < hi ? r->hi : hi, 0, r->rank};
    out->at = r->at + (out->lo - r->lo);
    return out->lo < out->hi;
}

/* What is updated, cut where the parts are, and where the layers begin and end. */
struct clime_share {
    int64_t offset;   /* bytes, in the weights */
    int64_t state, n; /* in all states; elements */
    int64_t at;       /* of its gradients in the buffer of its rank */
    enum clime_dtype type;
    int range, rank;
    bool decay;
};
/* Without its first n elements. */
static inline void clime_share_skip(struct clime_share *s, int64_t n) {
    s->offset += n * (int64_t)clime_dtype_bytes(s->type);
    s->state += n;
    s->at += n;
    s->n -= n;
}
/* In the order of the table; owned. */
struct clime_share *clime_parts_shares(const struct clime_parts *p, const struct clime_layout *l, int *n);

#endif
