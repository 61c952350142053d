/* Temporary memory of products at their first use, and running all first uses in advance. Called by memory planning and
 * at the server's start; owns nothing. */
#include "model/config/config.h"
#include "model/model.h"

static size_t most_of(const struct clime_model *m, enum clime_trial first, enum clime_trial last, int T, int N, int K,
                      size_t most) {
    if (T == 0 || N == 0 || K == 0) return most; /* not in this family */
    for (int kind = (int)first; kind <= (int)last; kind++) {
        size_t n = m->ops->trial_bytes(m->dev, (enum clime_trial)kind, T, N, K);
        if (n > most) most = n;
    }
    return most;
}

size_t clime_model_trial_bytes(const struct clime_model *m, int T, int R, bool trains) {
    const struct clime_config *c = &m->cfg;
    const struct {
        int T, N, K;
        bool f32;
    } products[] = {
        {T, (c->H + 2 * c->HK) * c->Dh, c->D, false},
        {T, c->D, c->H * c->Dh, false},
        {T, 2 * c->F, c->D, false},
        {T, c->D, c->F, false},
        {R, c->V, c->D, true},
        {T, c->router.E, c->D, true}, /* of experts these and the shared one's; grouped products need none */
        {T, 2 * c->F_shared, c->D, false},
        {T, c->D, c->F_shared, false},
    };
    size_t most = 0;
    for (size_t i = 0; i < CLIME_COUNT(products); i++) {
        enum clime_trial kind = products[i].f32 ? CLIME_TRIAL_FORWARD_F32 : CLIME_TRIAL_FORWARD;
        most = most_of(m, kind, kind, products[i].T, products[i].N, products[i].K, most);
        if (trains)
            most = most_of(m, CLIME_TRIAL_DX, CLIME_TRIAL_DW, products[i].T, products[i].N, products[i].K, most);
    }
    return most;
}

void clime_model_choose(const struct clime_model *m, int T, int R) {
    const struct clime_matrix *head = &m->matrix[m->layout.head];
    for (int l = 0; l < m->cfg.L; l++)
        for (int w = 0; w < CLIME_W_N; w++) {
            const int at = m->layout.layer[l].w[w];
            const bool f32 = w == CLIME_W_ROUTER || w == CLIME_W_SHARED_GATE;
            if (at < 0 || !m->matrix[at].N || w == CLIME_W_EXPERTS_GU || w == CLIME_W_EXPERTS_DOWN || w == CLIME_W_KV_B)
                continue;
            m->ops->choose(m->dev, f32 ? CLIME_TRIAL_FORWARD_F32 : CLIME_TRIAL_FORWARD, T, m->matrix[at].N,
                           m->matrix[at].K);
        }
    if (head->N) m->ops->choose(m->dev, CLIME_TRIAL_FORWARD_F32, R, head->N, head->K);
}
