/* The activations of a decoder layer, by number, and a set of buffers for them. model/layer.h has their sizes and which
 * are kept. */
#ifndef CLIME_MODEL_ACT_H
#define CLIME_MODEL_ACT_H

/* Over T rows, of the context's type unless marked fp32. */
enum clime_act {
    CLIME_ACT_X,         /* [T, D] residual stream at the layer's input */
    CLIME_ACT_LN1,       /* [T, D] */
    CLIME_ACT_RSTD1,     /* [T] fp32, or NULL: not wanted; so for the other RSTDs */
    CLIME_ACT_QKV,       /* [T, (H+2HK)*Dh] before norm and rotation; latent attention: [T, H, Dn+Dr], q alone */
    CLIME_ACT_Q,         /* [T, H, Dh] as attention reads it; latent attention: [T, H, R+Dr] */
    CLIME_ACT_K,         /* packed: [T, HK, Dh], [T, R+Dr]; paged: the layer's plane of keys */
    CLIME_ACT_V,         /* the same for values; latent attention has none */
    CLIME_ACT_ATT,       /* [T, H*Dh], [T, H, R] */
    CLIME_ACT_LSE,       /* [T, H] fp32 */
    CLIME_ACT_O,         /* [T, D] output projection */
    CLIME_ACT_O_NORM,    /* [T, D] normalised (post_norms), else the same memory */
    CLIME_ACT_RSTD_O,    /* [T] fp32 */
    CLIME_ACT_X2,        /* [T, D] residual stream after attention; may be x */
    CLIME_ACT_LN2,       /* [T, D] may be ln1 when nothing is kept */
    CLIME_ACT_RSTD2,     /* [T] fp32 */
    CLIME_ACT_GU,        /* [T, 2F]; experts: [T*k, 2F] by place */
    CLIME_ACT_H,         /* [T, F], [T*k, F] */
    CLIME_ACT_PARTS,     /* over several ranks: gather buffer, each rank's columns of T rows in turn */
    CLIME_ACT_DOWN,      /* [T, D] may be o when nothing is kept */
    CLIME_ACT_DOWN_NORM, /* [T, D] normalised (post_norms), else the same memory */
    CLIME_ACT_RSTD_DOWN, /* [T] fp32 */
    /* latent attention: */
    CLIME_ACT_Q_A,      /* [T, q_rank] compressed query */
    CLIME_ACT_Q_A_NORM, /* [T, q_rank] normalised */
    CLIME_ACT_RSTD_Q_A, /* [T] fp32 */
    CLIME_ACT_KV_A,     /* [T, R+Dr] compressed KV, before norm and rotation */
    CLIME_ACT_HEADS,    /* [T, H, Dv] outputs of the heads */
    /* layers with experts (kernels.h: route, permute): */
    CLIME_ACT_SCORES,        /* [T, E] fp32 */
    CLIME_ACT_CHOSEN,        /* [T, k] int32 experts, ascending */
    CLIME_ACT_WEIGHTS,       /* [T, k] fp32 */
    CLIME_ACT_START,         /* [E + 1] int32 */
    CLIME_ACT_FROM,          /* [T*k] int32 row of each place */
    CLIME_ACT_AT,            /* [T, k] int32 place of each slot */
    CLIME_ACT_EXPERT_IN,     /* [T*k, D] rows of ln2 by place */
    CLIME_ACT_EXPERT_ROWS,   /* [T*k, D] outputs of the rank's whole experts, before they are sent back */
    CLIME_ACT_CUTS,          /* [T*k] int32: column cut points of a row over all ranks */
    CLIME_ACT_EXPERT_OUT,    /* [T*k, D] */
    CLIME_ACT_SHARED_GU,     /* [T, 2F] */
    CLIME_ACT_SHARED_H,      /* [T, F] */
    CLIME_ACT_SHARED_OUT,    /* [T, D] */
    CLIME_ACT_SHARED_SCORE,  /* [T] fp32 score of the gate: a router with one expert, */
    CLIME_ACT_SHARED_ID,     /* [T] int32 its choice, */
    CLIME_ACT_SHARED_WEIGHT, /* [T] fp32 and its weight */
    CLIME_ACT_N
};

struct clime_layer_act {
    void *at[CLIME_ACT_N];
};

#endif
