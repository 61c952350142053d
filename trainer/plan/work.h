/* What a model asks for: weights, operations and bytes of a row, from its configuration alone. Pure; any thread. */
#ifndef CLIME_TRAINER_PLAN_WORK_H
#define CLIME_TRAINER_PLAN_WORK_H

#include "model/weights/layout.h"
#include "trainer/plan/rates.h"

struct clime_model_work {
    enum clime_work_kind kind;
    double weights;    /* all of them */
    double experts;    /* of these in experts that are chosen from */
    double head;       /* of the head, which logits alone are multiplied with */
    double active;     /* weights that a row is multiplied with, without the head */
    double pair_flops; /* of a query and a key, in all layers and heads */
    double kv_bytes;   /* of a position, in bf16 */
    int H, HK;         /* query heads, key/value heads; of latent attention HK = 0: all read one row */
    int key, value;    /* widths as attention sees them */
    int layers, expert_layers;
    int D, E, k;
};

void clime_model_work(const struct clime_config *c, const struct clime_layout *l, struct clime_model_work *out);

/* Operations of a row that sees `context` keys, without the head's. */
double clime_row_flops(const struct clime_model_work *w, double context);

/* Weights that `rows` rows read at least once, when their choices are even and independent. */
double clime_weights_hit(const struct clime_model_work *w, double rows);

#endif
