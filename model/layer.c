/* The activations of a layer: their sizes, what they cost to make again, and which share memory in a server. One table
 * for the trainer's plan (train.c) and the server's (forward.c). Pure; any thread.
 *
 * In a server nothing is kept, so what is not alive at the same time lies in the same memory: the residual stream in x,
 * the input of the next product in ln1, and what is added to the stream next in o.
 */
#include "model/layer.h"

void clime_layer_acts(const struct clime_model *m, struct clime_act_info out[CLIME_ACT_N]) {
    const struct clime_config *c = &m->cfg;
    const enum clime_act_cost cheap = CLIME_ACT_CHEAP, input = CLIME_ACT_INPUT, product = CLIME_ACT_PRODUCT,
                              pass = CLIME_ACT_ROW_PASS;
    size_t dt = clime_dtype_bytes(clime_model_dt(m)), f32 = sizeof(float), post = c->post_norms ? 1 : 0;
    size_t D = (size_t)c->D, F = (size_t)c->F, H = (size_t)c->H, Q = H * (size_t)c->Dh, KV = (size_t)(c->HK * c->Dh);
    /* with norms of its own a head's q and k go back through them; else only what came after the rotation is read */
    enum clime_act_cost qkv = c->qk_norm ? product : cheap;
    enum clime_act_cost normed = post ? product : cheap; /* read by the backward pass of the norm after it */
    const struct clime_act_info rows[CLIME_ACT_N] = {
        [CLIME_ACT_X] = {"x", D * dt, input, CLIME_ACT_X},
        [CLIME_ACT_LN1] = {"ln1", D * dt, pass, CLIME_ACT_LN1},
        [CLIME_ACT_RSTD1] = {"rstd1", f32, pass, -1},
        [CLIME_ACT_QKV] = {"qkv", (Q + 2 * KV) * dt, qkv, CLIME_ACT_QKV},
        [CLIME_ACT_Q] = {"q", Q * dt, pass, CLIME_ACT_Q},
        [CLIME_ACT_K] = {"k", KV * dt, pass, -1},
        [CLIME_ACT_V] = {"v", KV * dt, pass, -1},
        [CLIME_ACT_ATT] = {"att", Q * dt, product, CLIME_ACT_ATT},
        [CLIME_ACT_LSE] = {"lse", H * f32, product, -1},
        [CLIME_ACT_O] = {"o", D * dt, normed, CLIME_ACT_O},
        [CLIME_ACT_O_NORM] = {"o_norm", post * D * dt, cheap, CLIME_ACT_O},
        [CLIME_ACT_RSTD_O] = {"rstd_o", post * f32, product, -1},
        [CLIME_ACT_X2] = {"x2", D * dt, product, CLIME_ACT_X},
        [CLIME_ACT_LN2] = {"ln2", D * dt, pass, CLIME_ACT_LN1},
        [CLIME_ACT_RSTD2] = {"rstd2", f32, pass, -1},
        [CLIME_ACT_GU] = {"gu", 2 * F * dt, product, CLIME_ACT_GU},
        [CLIME_ACT_H] = {"h", F * dt, pass, CLIME_ACT_H},
        [CLIME_ACT_DOWN] = {"down", D * dt, normed, CLIME_ACT_O},
        [CLIME_ACT_DOWN_NORM] = {"down_norm", post * D * dt, cheap, CLIME_ACT_O},
        [CLIME_ACT_RSTD_DOWN] = {"rstd_down", post * f32, product, -1},
    };
    for (int i = 0; i < CLIME_ACT_N; i++) out[i] = rows[i];
}
