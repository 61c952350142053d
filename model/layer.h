/* One decoder layer, shared by server and trainer. Internal to model/.
 *
 * A layer is a mixer (attention, latent attention) and an MLP, each of a kind (model/weights/layout.h), with a norm
 * before it and a sum after it. Its weights are rows of the layout, its activations rows of a table (model/act.h). The
 * caller supplies the buffers: in the server many share memory, the trainer keeps them for the backward pass. The
 * operations, their order and their bits are the same.
 */
#ifndef CLIME_MODEL_LAYER_H
#define CLIME_MODEL_LAYER_H

#include "model/model.h"

/* What recomputing an activation costs. A level of recomputing keeps those above its limit. */
enum clime_act_cost {
    CLIME_ACT_CHEAP,   /* not read in the backward pass, or stored in another */
    CLIME_ACT_INPUT,   /* needs the layers before */
    CLIME_ACT_PRODUCT, /* a product or attention */
    CLIME_ACT_ROW_PASS /* one pass over rows: norms, rotation, SwiGLU */
};

struct clime_act_info {
    const char *name;
    size_t row_bytes, fixed_bytes; /* per row; per cut, for any number of rows. Both 0: not used by this model */
    enum clime_act_cost cost;
    int server; /* in a server: the activation whose memory it uses, perhaps its own; -1 = a plane of KV, or not used */
};
void clime_layer_acts(const struct clime_model *m, struct clime_act_info out[CLIME_ACT_N]);
static inline size_t clime_act_bytes(const struct clime_act_info *a, int rows) {
    return (size_t)rows * a->row_bytes + a->fixed_bytes;
}

/* The buffers of an MLP's cut i, of `rows` rows, for rows that are cut (struct clime_batch). */
struct clime_layer_act clime_layer_cut(const struct clime_model *m, void *const *a, int i, int rows);

/* Runs layer l. With delta, x = res + delta first (the previous layer's sum, fused with this layer's norm); without, x
 * already holds the residual stream. Leaves x2 and down_norm, whose sum is the next layer's input. */
void clime_layer_forward(struct clime_model *m, int l, const struct clime_batch *b, const struct clime_layer_act *a,
                         const void *res, const void *delta);

/* Layer l's resident experts, without gradients; and the rows of a layer. */
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

/* model/latent.c: o_norm = o(latent attention heads(ln1)); the mixer called by forward.c. */
void clime_latent_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a);

/* model/experts.c: down_norm = weighted sum of the chosen experts' outputs for ln2; the MLP called by forward.c. */
void clime_experts_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a);

/* Final norm and head for R rows of the residual stream: y = final norm of x (may alias), then logits[R, V] fp32. */
void clime_final_norm(struct clime_model *m, int R, const void *x, void *y, float *rstd);
void clime_head_logits(struct clime_model *m, int R, const void *y, float *logits);

#endif
