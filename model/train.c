/* The trainer's forward pass: packed sequences, saved activations, log-probabilities in row chunks of the head.
 *
 * Called by the trainer's main thread (learning, scoring, reference models); uses the memory planned by train_memory.c.
 * Invariant: the layer is clime_layer_forward and the head clime_final_norm, clime_head_logits and head_stats, exactly
 * as in the server, so log-probabilities have the server's bits.
 *
 * Logits are computed a chunk at a time. With keep_logits every chunk has its own place and is kept for the backward
 * pass: at 8,192 rows and a vocabulary of 151,936 that is 4.6 GiB of fp32. Without, the chunks share one place and, if
 * the loss rows need more than one, the backward pass recomputes each: 2 of the head's 8 units of work (forward, again,
 * dx, dw), 2.4 % of a step of 4 B parameters. The gradients' chunks are the same, and so are their bits.
 */
#include "model/backward_int.h"

#include <stdlib.h>
#include <string.h>

#include "model/weights/convert.h"

/* ---- the batch ----------------------------------------------------------------------------------------------- */

static enum clime_err check_given(const struct clime_train *t, const struct clime_packed_batch *b,
                                  struct clime_error *e) {
    const struct clime_config *c = &t->m->cfg;
    const int16_t *x = b->given;
    if (!t->given) return clime_fail(e, CLIME_ERR_INPUT, "no experts that are given are planned for");
    for (int l = 0; l < c->L; l++) {
        for (int i = 0; i < b->T; i++, x += c->router.k) {
            if (!clime_config_has_experts(c, l) || x[0] < 0) continue;
            for (int j = 0; j < c->router.k; j++)
                if (x[j] >= c->router.E || (j && x[j] <= x[j - 1]))
                    return clime_fail(e, CLIME_ERR_INPUT, "the experts given to row %d in layer %d are none", i, l);
        }
    }
    return CLIME_OK;
}

static enum clime_err check_kept(const struct clime_packed_batch *b, int V, struct clime_error *e) {
    for (int i = 0; i < b->n_loss; i++) {
        const int64_t from = b->kept_from[i], end = b->kept_from[i + 1];
        bool good = end >= from && end - from <= CLIME_MAX_KEPT, has = end == from;
        for (int64_t k = from; k < end && good; k++) {
            good = b->kept[k] >= 0 && b->kept[k] < V && (k == from || b->kept[k] > b->kept[k - 1]);
            has = has || b->kept[k] == b->target[i];
        }
        if (!good || !has)
            return clime_fail(e, CLIME_ERR_INPUT, "loss row %d: its set is not ascending, or lacks its target %d", i,
                              b->target[i]);
    }
    return CLIME_OK;
}

static enum clime_err check_batch(const struct clime_train *t, const struct clime_packed_batch *b,
                                  struct clime_error *e) {
    const struct clime_config *c = &t->m->cfg;
    if (b->T < 1 || b->T > t->o.max_rows)
        return clime_fail(e, CLIME_ERR_LIMIT, "a micro-batch of %d tokens; 1 to %d are planned", b->T, t->o.max_rows);
    if (b->n_seq < 1 || b->n_seq > t->o.max_seqs)
        return clime_fail(e, CLIME_ERR_LIMIT, "%d sequences in a micro-batch; 1 to %d are planned", b->n_seq,
                          t->o.max_seqs);
    if (b->start[0] != 0 || b->start[b->n_seq] != b->T)
        return clime_fail(e, CLIME_ERR_INPUT, "sequences do not cover the micro-batch");
    for (int s = 0; s < b->n_seq; s++) {
        int64_t len = (int64_t)b->start[s + 1] - b->start[s];
        if (len < 1) return clime_fail(e, CLIME_ERR_INPUT, "sequence %d is empty", s);
        if (len > t->m->rope.max_pos)
            return clime_fail(e, CLIME_ERR_LIMIT, "sequence %d has %lld tokens, the model reaches %d", s,
                              (long long)len, t->m->rope.max_pos);
    }
    for (int i = 0; i < b->T; i++)
        if (b->ids[i] < 0 || b->ids[i] >= c->V)
            return clime_fail(e, CLIME_ERR_INPUT, "token id %d is outside the vocabulary of %d", b->ids[i], c->V);
    if (b->n_loss < 0 || b->n_loss > b->T) return clime_fail(e, CLIME_ERR_INPUT, "%d loss rows", b->n_loss);
    for (int i = 0; i < b->n_loss; i++)
        if (b->row[i] < 0 || b->row[i] >= b->T || (i && b->row[i] <= b->row[i - 1]) || b->target[i] < 0 ||
            b->target[i] >= c->V)
            return clime_fail(e, CLIME_ERR_INPUT, "loss row %d: row %d, target %d", i, b->row[i], b->target[i]);
    if (b->kept_from && check_kept(b, c->V, e)) return e->code;
    return b->given ? check_given(t, b, e) : CLIME_OK;
}

/* Assigns rows and loss rows to ranks. */
static void cut_batch(struct clime_train *t, const struct clime_packed_batch *b) {
    const struct clime_train_cuts *r = &t->o.rows;
    const int all = clime_train_filled(t, b->T), cut = all / r->cuts;
    t->T = all / r->ranks;
    t->first = t->T * r->rank;
    t->n_seq = b->n_seq;
    memcpy(t->start, b->start, ((size_t)b->n_seq + 1) * sizeof *t->start);
    for (int at = b->T; at < all; at = t->start[t->n_seq])
        t->start[++t->n_seq] = all - at < CLIME_CONTEXT_UNIT ? all : at + CLIME_CONTEXT_UNIT;
    for (int i = 0, k = 0; i <= r->cuts; i++) {
        while (k < b->n_loss && b->row[k] < i * cut) k++;
        t->loss_from[i] = i < r->cuts ? k : b->n_loss;
    }
    t->R = clime_train_loss_from(t, t->n_cuts);
    if (t->context) clime_context_rows(t->context, t->T);
}

/* For this rank's rows; padding rows of the last cut keep the router's choice. */
static void upload_given(struct clime_train *t, const struct clime_packed_batch *b) {
    const size_t k = (size_t)t->m->cfg.router.k, n = (size_t)t->T * k;
    const int end = t->first + t->T < b->T ? t->first + t->T : b->T;
    const size_t own = end > t->first ? (size_t)(end - t->first) * k : 0;
    t->gives = b->given != NULL;
    if (!t->gives) return;
    int16_t *rows = xmalloc(n * sizeof *rows);
    memset(rows, 0xff, n * sizeof *rows); /* -1 */
    for (int l = 0; l < t->m->cfg.L; l++) {
        const int16_t *layer = b->given + (size_t)l * (size_t)b->T * k;
        if (own) memcpy(rows, layer + (size_t)t->first * k, own * sizeof *rows);
        t->m->ops->copy_in(t->m->dev, t->given + (size_t)l * n, rows, n * sizeof *rows);
    }
    free(rows);
}

static void upload(struct clime_train *t, const struct clime_packed_batch *b) {
    const struct clime_ops *ops = t->m->ops;
    struct clime_dev *d = t->m->dev;
    cut_batch(t, b);
    const int first_loss = clime_train_first_loss(t);
    int32_t *pos = xmalloc((size_t)t->T * sizeof *pos), *ids = xcalloc((size_t)t->T, sizeof *ids);
    for (int s = 0, i = t->first; i < t->first + t->T; i++) {
        while (t->start[s + 1] <= i) s++;
        pos[i - t->first] = i - t->start[s];
        if (i < b->T) ids[i - t->first] = b->ids[i];
    }
    ops->copy_in(d, t->pos, pos, (size_t)t->T * 4);
    ops->copy_in(d, t->ids, ids, (size_t)t->T * 4);
    ops->copy_in(d, t->q_start, t->start, (size_t)(t->n_seq + 1) * 4);
    if (t->R) {
        for (int i = 0; i < t->R; i++) ids[i] = b->row[first_loss + i] - t->first;
        ops->copy_in(d, t->rows, ids, (size_t)t->R * 4);
        ops->copy_in(d, t->target, b->target + first_loss, (size_t)t->R * 4);
        ops->copy_in(d, t->inv_temp, b->inv_temp + first_loss, (size_t)t->R * 4);
    }
    upload_given(t, b);
    free(pos);
    free(ids);
}

struct clime_batch clime_train_batch(const struct clime_train *t) {
    struct clime_batch out = {.T = t->T,
                              .ids = t->ids,
                              .pos = t->pos,
                              .given = t->gives ? t->given : NULL,
                              .cuts = t->n_cuts,
                              .context = t->context,
                              .travel = t->travel};
    out.attn = (struct clime_attn){.n_seq = t->n_seq, .q_start = t->q_start, .h_q_start = t->start};
    for (int s = 0; s < t->n_seq; s++) {
        int len = t->start[s + 1] - t->start[s];
        if (len > out.attn.max_len) out.attn.max_len = len;
    }
    return out;
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

static int layer_after(const struct clime_model *m, int l) {
    return l + 1 < m->cfg.L ? l + 1 : -1;
}

/* Embedding and layers; leaves the residual stream after the last layer in t->dres. */
static void run_layers(struct clime_train *t, const struct clime_batch *of) {
    struct clime_model *m = t->m;
    struct clime_batch routed = *of, *b = &routed;
    struct clime_layer_act a = clime_train_act(t, 0);
    b->routing = t->routing; /* only here: a recomputed layer makes the same choice */
    if (b->routing) m->ops->zero(m->dev, b->routing, (size_t)b->T * sizeof *b->routing);
    m->ops->embed(m->dev, b->T, m->cfg.D, b->ids, clime_weight(m, m->layout.embed), a.at[CLIME_ACT_X]);
    for (int l = 0; l < m->cfg.L; l++) {
        const void *res = a.at[CLIME_ACT_X2], *delta = l ? a.at[CLIME_ACT_DOWN_NORM] : NULL;
        a = clime_train_act(t, l);
        clime_ring_layer(m, l, layer_after(m, l));
        clime_layer_forward(m, l, b, &a, res, delta);
    }
    m->ops->add(m->dev, b->T, m->cfg.D, a.at[CLIME_ACT_X2], a.at[CLIME_ACT_DOWN_NORM], t->dres);
}

/* The R loss rows after the final norm, in t->head_y. */
static void run_norm(struct clime_train *t, int R) {
    struct clime_model *m = t->m;
    m->ops->gather(m->dev, R, m->cfg.D, t->rows, t->dres, t->head_x);
    clime_final_norm(m, R, t->head_x, t->head_y, t->head_rstd);
}

void clime_train_keep(struct clime_train *t, const struct clime_packed_batch *b, int r, int n, float *logits) {
    if (b->kept_from)
        t->m->ops->head_keep(t->m->dev, n, t->m->cfg.V, logits, b->kept_from + clime_train_first_loss(t) + r, b->kept);
}

/* Log-probabilities of the R loss rows, chunk by chunk. Leaves the logits of all chunks, or of the last. */
static void run_head(struct clime_train *t, const struct clime_packed_batch *b, bool entropy) {
    struct clime_model *m = t->m;
    const int D = m->cfg.D, V = m->cfg.V, first = clime_train_first_loss(t);
    if (t->R) run_norm(t, t->R);
    for (int i = 0, r = 0; i < t->n_cuts; i++) {
        const int end = clime_train_loss_from(t, i + 1);
        for (int n; r < end; r += n) {
            n = clime_train_chunk(t, r, end);
            float *logits = clime_train_logits(t, r);
            clime_head_logits(m, n, clime_train_rows(t, t->head_y, r, D), logits);
            if (b->kept_from)
                m->ops->head_stats(m->dev, n, V, logits, t->inv_temp + r, t->target + r, t->lse + r,
                                   t->whole + first + r, NULL);
            clime_train_keep(t, b, r, n, logits);
            m->ops->head_stats(m->dev, n, V, logits, t->inv_temp + r, t->target + r, t->lse + r, t->logp + first + r,
                               entropy ? t->entropy + first + r : NULL);
        }
    }
}

/* Replicates x, of which each rank that shares the batch has filled its own loss rows. */
static void share_loss_rows(const struct clime_train *t, void *x) {
    int from[CLIME_CUTS_MAX + 1];
    if (!t->context) return;
    for (int r = 0; r <= t->o.rows.ranks; r++) from[r] = t->loss_from[r * t->n_cuts];
    clime_context_share(t->context, from, x);
}

/* Waits for the device; checks that the weights arrived. */
enum clime_err clime_train_wait(struct clime_train *t, struct clime_error *e) {
    enum clime_err rc = clime_model_ranks_check(t->m, e);
    if (!rc && t->context && t->context->error.code) {
        if (e) *e = t->context->error;
        rc = t->context->error.code;
    }
    if (!rc && t->travel && t->travel->error.code) {
        if (e) *e = t->travel->error;
        rc = t->travel->error.code;
    }
    return rc ? rc : t->m->ops->sync(t->m->dev, e);
}

void clime_train_ask_layers(struct clime_train *t) {
    struct clime_travel_layer layer;
    for (int l = 0; l < t->m->cfg.L; l++) {
        const struct clime_layer_act a = clime_train_act(t, l);
        const struct clime_travel_rows none = clime_rows_travel(0, a.at);
        clime_ring_layer(t->m, l, layer_after(t->m, l));
        if (!clime_train_travels(t, l, &layer)) continue;
        for (int i = 0; i < t->n_cuts; i++) clime_travel_forward(t->travel, &layer, i, &none);
    }
}

enum clime_err clime_train_forward(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *logp,
                                   float *entropy, struct clime_error *e) {
    CHECK(!(save && t->o.forward_only));
    t->saved = false;
    enum clime_err rc = check_batch(t, b, e);
    if (rc) return rc;
    upload(t, b);
    struct clime_batch batch = clime_train_batch(t);
    if (b->n_loss) {
        run_layers(t, &batch);
        run_head(t, b, save || entropy);
        share_loss_rows(t, t->logp);
        if (save || entropy) share_loss_rows(t, t->entropy);
        t->m->ops->copy_out(t->m->dev, logp, t->logp, (size_t)b->n_loss * 4);
        if (entropy) t->m->ops->copy_out(t->m->dev, entropy, t->entropy, (size_t)b->n_loss * 4);
    } else {
        clime_train_ask_layers(t);
    }
    rc = clime_train_wait(t, e);
    t->saved = save && rc == CLIME_OK;
    return rc;
}

void clime_train_whole(const struct clime_train *t, const struct clime_packed_batch *b, float *logp) {
    CHECK(b->kept_from);
    if (b->n_loss == 0) return;
    share_loss_rows(t, t->whole);
    t->m->ops->copy_out(t->m->dev, logp, t->whole, (size_t)b->n_loss * sizeof *logp);
}

void clime_train_routing(const struct clime_train *t, const struct clime_packed_batch *b, uint32_t *routing) {
    struct clime_model *m = t->m;
    CHECK(t->routing);
    if (b->n_loss == 0) return;
    if (t->R) clime_gather_routing(m, t->R, t->rows, t->routing, t->loss_routing + clime_train_first_loss(t));
    share_loss_rows(t, t->loss_routing);
    m->ops->copy_out(m->dev, routing, t->loss_routing, (size_t)b->n_loss * sizeof *routing);
}

/* Layer l's choices for all rows of the batch, on the device. */
static const int32_t *choices_of(const struct clime_train *t, int l) {
    const int k = t->m->cfg.router.k, own = t->T * k;
    const int32_t *chosen = clime_train_act(t, l).at[CLIME_ACT_CHOSEN];
    int from[CLIME_CUTS_MAX + 1];
    if (!t->context) return chosen;
    for (int r = 0; r <= t->o.rows.ranks; r++) from[r] = r * own;
    t->m->ops->copy(t->m->dev, t->choices + from[t->o.rows.rank], chosen, (size_t)own * sizeof *chosen);
    clime_context_share(t->context, from, t->choices);
    return t->choices;
}

int32_t *clime_train_choices(const struct clime_train *t, const struct clime_packed_batch *b) {
    const struct clime_model *m = t->m;
    size_t n = (size_t)b->T * (size_t)m->cfg.router.k, at = 0;
    int first = m->layout.first_trained; /* the layers below it keep nothing and share its place */
    bool kept = t->saved && t->acts[CLIME_ACT_CHOSEN].keep;
    for (int l = 0; l < first && l < m->cfg.L; l++) kept &= !clime_config_has_experts(&m->cfg, l);
    if (!kept) return NULL;
    int32_t *out = xmalloc((size_t)m->cfg.L * n * sizeof *out);
    for (int l = 0; l < m->cfg.L; l++) {
        if (!clime_config_has_experts(&m->cfg, l)) continue;
        m->ops->copy_out(m->dev, out + at, choices_of(t, l), n * sizeof *out);
        at += n;
    }
    return out;
}

enum clime_err clime_train_hidden(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *y,
                                  struct clime_error *e) {
    CHECK(!(save && t->o.forward_only));
    t->saved = false;
    enum clime_err rc = check_batch(t, b, e);
    if (rc) return rc;
    upload(t, b);
    size_t n = (size_t)t->R * (size_t)t->m->cfg.D;
    bool half = clime_model_dt(t->m) == CLIME_BF16;
    uint16_t *rows = half ? xmalloc(n * sizeof *rows + 1) : NULL;
    struct clime_batch batch = clime_train_batch(t);
    if (b->n_loss) {
        run_layers(t, &batch);
        if (n) run_norm(t, t->R);
        if (n)
            t->m->ops->copy_out(t->m->dev, half ? (void *)rows : y, t->head_y, n * (half ? sizeof *rows : sizeof *y));
    } else {
        clime_train_ask_layers(t);
    }
    rc = clime_train_wait(t, e);
    for (size_t i = 0; half && i < n; i++) y[i] = clime_bf16_float(rows[i]);
    free(rows);
    t->saved = save && rc == CLIME_OK;
    return rc;
}

const int *clime_train_own_loss(const struct clime_train *t, int *n_cuts) {
    *n_cuts = t->n_cuts;
    return t->loss_from + t->o.rows.rank * t->n_cuts;
}

enum clime_err clime_train_share(struct clime_train *t, float *x, struct clime_error *e) {
    const int first = clime_train_first_loss(t), n = t->loss_from[t->o.rows.cuts];
    if (!t->context || n == 0) return CLIME_OK;
    if (t->R) t->m->ops->copy_in(t->m->dev, t->logp + first, x + first, (size_t)t->R * sizeof *x);
    share_loss_rows(t, t->logp); /* as the model's own head would */
    t->m->ops->copy_out(t->m->dev, x, t->logp, (size_t)n * sizeof *x);
    return clime_train_wait(t, e);
}
