/* One decoder layer, written once for server and trainer. Internal to model/.
 *
 * A layer is a mixer (attention, latent attention) and an MLP, each of a kind (model/weights/layout.h), with a norm
 * before it and a sum after it. Its weights are rows of the layout, its activations rows of a table (model/act.h). A
 * caller gives the layer its buffers: the server lets many of them share memory, the trainer keeps them for the
 * backward pass; the operations and their order are the same, and so are the bits.
 */
#ifndef CLIME_MODEL_LAYER_H
#define CLIME_MODEL_LAYER_H

#include "model/model.h"

/* What it takes to make an activation again. A level of recomputing keeps what costs more than it wants to spend. */
enum clime_act_cost {
    CLIME_ACT_CHEAP,   /* nothing reads it in the backward pass, or it lies in another */
    CLIME_ACT_INPUT,   /* the layers before */
    CLIME_ACT_PRODUCT, /* a product or attention */
    CLIME_ACT_ROW_PASS /* one pass over rows: norms, rotation, SwiGLU */
};

struct clime_act_info {
    const char *name;
    size_t row_bytes, fixed_bytes; /* of each row, and of any number of rows of a cut; both 0: this model has none */
    enum clime_act_cost cost;
    int server; /* in a server: whose memory it has, which may be its own; -1 = a plane of KV, or it is not wanted */
};
void clime_layer_acts(const struct clime_model *m, struct clime_act_info out[CLIME_ACT_N]);
static inline size_t clime_act_bytes(const struct clime_act_info *a, int rows) {
    return (size_t)rows * a->row_bytes + a->fixed_bytes;
}

/* Of rows that are cut (struct clime_batch): the buffers of an MLP's cut i of `rows` rows, as if it were alone. */
struct clime_layer_act clime_layer_cut(const struct clime_model *m, void *const *a, int i, int rows);

/* Runs layer l. With delta, x = res + delta comes first (the sum of the layer before, fused with this layer's norm);
 * without, x holds the residual stream already. Leaves x2 and down_norm, whose sum enters the next layer. */
void clime_layer_forward(struct clime_model *m, int l, const struct clime_batch *b, const struct clime_layer_act *a,
                         const void *res, const void *delta);

/* Of experts that stay with their rank: layer l's, whose gradients are not wanted; and the rows of a layer. */
static inline struct clime_travel_layer clime_layer_travel(const struct clime_model *m, int l) {
    const int *w = m->layout.layer[l].w;
    return (struct clime_travel_layer){
        .number = l, .gu = &m->matrix[w[CLIME_W_EXPERTS_GU]], .down = &m->matrix[w[CLIME_W_EXPERTS_DOWN]]};
}
static inline struct clime_travel_rows clime_rows_travel(int T, void *const *a) {
    return (struct clime_travel_rows){.T = T,
                                      .start = a[CLIME_ACT_START],
                                      .from = a[CLIME_ACT_FROM],
                                      .at = a[CLIME_ACT_AT],
                                      .x = a[CLIME_ACT_LN2],
                                      .places = a[CLIME_ACT_EXPERT_OUT],
                                      .room = a[CLIME_ACT_EXPERT_IN]};
}

/* y[i] = routing[rows[i]], device arrays. */
void clime_gather_routing(const struct clime_model *m, int R, const int32_t *rows, const uint32_t *routing,
                          uint32_t *y);

/* model/latent.c: o_norm = o(heads of latent attention(ln1)), as forward.c's mixer. */
void clime_latent_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a);

/* model/experts.c: down_norm = sum of the chosen experts' weighted outputs of ln2, as forward.c's MLP. */
void clime_experts_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a);

/* The end of the network for R rows of the residual stream: y = final norm of x (may alias), then logits[R, V] fp32. */
void clime_final_norm(struct clime_model *m, int R, const void *x, void *y, float *rstd);
void clime_head_logits(struct clime_model *m, int R, const void *y, float *logits);

#endif
