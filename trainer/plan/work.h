/* Model work: weights, operations and bytes per row, from its configuration alone. Pure; any thread. */
#ifndef CLIME_TRAINER_PLAN_WORK_H
#define CLIME_TRAINER_PLAN_WORK_H

#include "model/weights/layout.h"
#include "trainer/plan/rates.h"

struct clime_model_work {
    enum clime_work_kind kind;
    double weights;    /* all of them */
    double experts;    /* of these, in routed experts */
    double head;       /* of the head, used only for logits */
    double active;     /* weights that a row is multiplied with, without the head */
    double pair_flops; /* per query and key, over all layers and heads */
    double kv_bytes;   /* per position, in bf16 */
    int H, HK;         /* query heads, key/value heads; latent attention: HK = 0, all read one row */
    int key, value;    /* widths in attention */
    int layers, expert_layers;
    int D, E, k;
};

void clime_model_work(const struct clime_config *c, const struct clime_layout *l, struct clime_model_work *out);

/* Operations of a row that sees `context` keys, without the head's. */
double clime_row_flops(const struct clime_model_work *w, double context);

/* Weights read at least once by `rows` rows, if experts are chosen evenly and independently. */
double clime_weights_hit(const struct clime_model_work *w, double rows);

#endif
