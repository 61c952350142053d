/* The activations of a layer: their sizes, their recompute cost, and which share memory in a server. One table for the
 * trainer's plan (train.c) and the server's (forward.c). Pure; any thread.
 *
 * A server keeps nothing, so activations that are not live at the same time share memory: the residual stream in x, the
 * input of the next product in ln1, and the next addend of the stream in o.
 */
#include "model/layer.h"

void clime_layer_acts(const struct clime_model *m, struct clime_act_info out[CLIME_ACT_N]) {
    const struct clime_config *c = &m->cfg;
    const enum clime_act_cost cheap = CLIME_ACT_CHEAP, input = CLIME_ACT_INPUT, product = CLIME_ACT_PRODUCT,
                              pass = CLIME_ACT_ROW_PASS;
    size_t dt = clime_dtype_bytes(clime_model_dt(m)), f32 = sizeof(float), post = c->post_norms ? 1 : 0;
    size_t D = (size_t)c->D, F = (size_t)c->F, H = (size_t)c->H, Q = H * (size_t)m->heads.Dh;
    size_t n = (size_t)m->ranks.n, KV = (size_t)(m->heads.HK * m->heads.Dh); /* the rank's keys and values */
    size_t latent = c->latent.R ? 1 : 0, V = latent ? 0 : KV, ATT = latent ? H * (size_t)m->heads.Dv / n : Q;
    size_t QKV = latent ? H * (size_t)c->Dh / n : Q / n + 2 * KV;
    size_t QR = (size_t)c->q_rank, ranked = QR ? 1 : 0, HV = H * (size_t)c->latent.Dv;
    /* norms of heads read q and k in the backward pass, latent attention's matrices read q; else only what follows the
     * rotation is read */
    enum clime_act_cost qkv = c->qk_norm || latent ? product : cheap;
    size_t E = (size_t)c->router.E, k = (size_t)c->router.k, FE = (size_t)c->F_expert, FS = (size_t)c->F_shared;
    size_t some = E ? 1 : 0, shared = FS ? 1 : 0, gate = c->shared_gate ? 1 : 0, i32 = sizeof(int32_t);
    size_t start = some * ((E + 1) * i32 + 63) / 64 * 64; /* cuts' are contiguous, aligned */
    size_t whole = E && m->ranks.whole_experts ? 1 : 0, GU = 2 * (k * FE > F ? k * FE : F) / n;
    if (whole && 2 * k * FE > GU) GU = 2 * k * FE; /* all rows may choose one rank's */
    const size_t gathered[] = {D, whole || F > k * FE ? F : k * FE, FS, latent ? HV : Q};
    if (m->ring && m->ring->experts) /* experts' gu and h are elsewhere (context/travel.h): dense layers only */
        GU = 2 * F;
    else if (k * FE > F) /* one place for layers of either kind */
        F = k * FE;
    size_t widest = 0;
    for (size_t i = 0; i < CLIME_COUNT(gathered); i++) widest = gathered[i] > widest ? gathered[i] : widest;
    enum clime_act_cost normed = post ? product : cheap; /* read by the backward pass of the norm after it */
    const struct clime_act_info rows[CLIME_ACT_N] = {
        [CLIME_ACT_X] = {"x", D * dt, 0, input, CLIME_ACT_X},
        [CLIME_ACT_LN1] = {"ln1", D * dt, 0, pass, CLIME_ACT_LN1},
        [CLIME_ACT_RSTD1] = {"rstd1", f32, 0, pass, -1},
        [CLIME_ACT_QKV] = {"qkv", QKV * dt, 0, qkv, CLIME_ACT_QKV},
        [CLIME_ACT_Q] = {"q", Q / n * dt, 0, pass, CLIME_ACT_Q},
        [CLIME_ACT_K] = {"k", KV * dt, 0, pass, -1},
        [CLIME_ACT_V] = {"v", V * dt, 0, pass, -1},
        [CLIME_ACT_ATT] = {"att", ATT * dt, 0, product, CLIME_ACT_ATT},
        [CLIME_ACT_LSE] = {"lse", H * f32, 0, product, -1},
        [CLIME_ACT_O] = {"o", D * dt, 0, normed, CLIME_ACT_O},
        [CLIME_ACT_O_NORM] = {"o_norm", post * D * dt, 0, cheap, CLIME_ACT_O},
        [CLIME_ACT_RSTD_O] = {"rstd_o", post * f32, 0, product, -1},
        [CLIME_ACT_X2] = {"x2", D * dt, 0, product, CLIME_ACT_X},
        [CLIME_ACT_LN2] = {"ln2", D * dt, 0, pass, CLIME_ACT_LN1},
        [CLIME_ACT_RSTD2] = {"rstd2", f32, 0, pass, -1},
        [CLIME_ACT_GU] = {"gu", GU * dt, 0, product, CLIME_ACT_GU},
        [CLIME_ACT_H] = {"h", F * dt, 0, pass, CLIME_ACT_H},
        [CLIME_ACT_PARTS] = {"parts", n > 1 ? widest * dt : 0, 0, cheap, CLIME_ACT_PARTS},
        [CLIME_ACT_DOWN] = {"down", D * dt, 0, normed, CLIME_ACT_O},
        [CLIME_ACT_DOWN_NORM] = {"down_norm", post * D * dt, 0, cheap, CLIME_ACT_O},
        [CLIME_ACT_RSTD_DOWN] = {"rstd_down", post * f32, 0, product, -1},
        [CLIME_ACT_Q_A] = {"q_a", QR * dt, 0, product, CLIME_ACT_Q_A},
        [CLIME_ACT_Q_A_NORM] = {"q_a_norm", QR * dt, 0, pass, CLIME_ACT_Q_A_NORM},
        [CLIME_ACT_RSTD_Q_A] = {"rstd_q_a", ranked * f32, 0, pass, -1},
        [CLIME_ACT_KV_A] = {"kv_a", latent * KV * dt, 0, product, CLIME_ACT_KV_A},
        [CLIME_ACT_HEADS] = {"heads", HV * dt, 0, product, CLIME_ACT_HEADS},
        [CLIME_ACT_SCORES] = {"scores", E * f32, 0, product, CLIME_ACT_SCORES},
        [CLIME_ACT_CHOSEN] = {"chosen", k * i32, 0, product, CLIME_ACT_CHOSEN},
        [CLIME_ACT_WEIGHTS] = {"weights of experts", k * f32, 0, product, CLIME_ACT_WEIGHTS},
        [CLIME_ACT_START] = {"start", 0, start, product, CLIME_ACT_START},
        [CLIME_ACT_FROM] = {"from", k * i32, 0, product, CLIME_ACT_FROM},
        [CLIME_ACT_AT] = {"at", k * i32, 0, product, CLIME_ACT_AT},
        [CLIME_ACT_EXPERT_IN] = {"expert_in", k * D * dt, 0, cheap, CLIME_ACT_EXPERT_IN},
        [CLIME_ACT_EXPERT_ROWS] = {"expert_rows", whole * k * D * dt, 0, cheap, CLIME_ACT_EXPERT_ROWS},
        [CLIME_ACT_CUTS] = {"cuts", whole * k * i32, 0, cheap, CLIME_ACT_CUTS},
        [CLIME_ACT_EXPERT_OUT] = {"expert_out", k * D / n * dt, 0, cheap, CLIME_ACT_EXPERT_OUT},
        [CLIME_ACT_SHARED_GU] = {"shared_gu", 2 * FS / n * dt, 0, product, CLIME_ACT_SHARED_GU},
        [CLIME_ACT_SHARED_H] = {"shared_h", FS * dt, 0, pass, CLIME_ACT_SHARED_H},
        [CLIME_ACT_SHARED_OUT] = {"shared_out", shared * D / n * dt, 0, cheap, CLIME_ACT_SHARED_OUT},
        [CLIME_ACT_SHARED_SCORE] = {"shared_score", gate * f32, 0, product, CLIME_ACT_SHARED_SCORE},
        [CLIME_ACT_SHARED_ID] = {"shared_id", gate * i32, 0, product, CLIME_ACT_SHARED_ID},
        [CLIME_ACT_SHARED_WEIGHT] = {"shared_weight", gate * f32, 0, product, CLIME_ACT_SHARED_WEIGHT},
    };
    for (int i = 0; i < CLIME_ACT_N; i++) out[i] = rows[i];
}

struct clime_layer_act clime_layer_cut(const struct clime_model *m, void *const *a, int i, int rows) {
    struct clime_act_info acts[CLIME_ACT_N];
    struct clime_layer_act out;
    clime_layer_acts(m, acts);
    for (int k = 0; k < CLIME_ACT_N; k++)
        out.at[k] = a[k] ? (char *)a[k] + (size_t)i * clime_act_bytes(&acts[k], rows) : NULL;
    if (a[CLIME_ACT_DOWN_NORM] == a[CLIME_ACT_DOWN]) out.at[CLIME_ACT_DOWN_NORM] = out.at[CLIME_ACT_DOWN];
    return out;
}
