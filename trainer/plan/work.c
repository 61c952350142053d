/* Model work: counts over a model's parameter table. Called by the plan, main thread; pure.
 *
 * Latent attention is counted in its absorbed form, as computed (docs/decisions.md). */
#include "trainer/plan/work.h"

#include <math.h>
#include <string.h>

static bool is_expert(const struct clime_slice *s) {
    return strstr(s->name, ".experts.") != NULL;
}

void clime_model_work(const struct clime_config *c, const struct clime_layout *l, struct clime_model_work *out) {
    *out = (struct clime_model_work){.kind = c->latent.R   ? CLIME_WORK_LATENT
                                             : c->router.E ? CLIME_WORK_EXPERTS
                                                           : CLIME_WORK_DENSE,
                                     .head = (double)c->V * c->D,
                                     .layers = c->L,
                                     .D = c->D,
                                     .E = c->router.E,
                                     .k = c->router.k};
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        double n = (double)s->n;
        out->weights += n;
        if (strncmp(s->name, "model.layers.", strlen("model.layers.")) != 0) continue; /* embedding, last norm, head */
        if (is_expert(s)) out->experts += n;
        if (s->kind == CLIME_PARAM_MATRIX) out->active += is_expert(s) ? n * c->router.k / c->router.E : n;
    }
    for (int i = 0; i < c->L; i++) out->expert_layers += clime_config_has_experts(c, i);
    int key = c->latent.R ? c->latent.R + c->latent.Dr : c->Dh, value = c->latent.R ? c->latent.R : c->Dh;
    out->H = c->H;
    out->HK = c->latent.R ? 0 : c->HK;
    out->key = key;
    out->value = value;
    out->pair_flops = 2.0 * c->L * c->H * (key + value);
    out->kv_bytes = 2.0 * c->L * (c->latent.R ? key : 2 * c->HK * c->Dh);
}

double clime_row_flops(const struct clime_model_work *w, double context) {
    return 2 * w->active + w->pair_flops * context;
}

double clime_weights_hit(const struct clime_model_work *w, double rows) {
    double missed = w->E ? pow(1 - (double)w->k / w->E, rows) : 0;
    return w->weights - w->experts * missed;
}
