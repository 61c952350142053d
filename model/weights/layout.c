/* The parameter table: the fixed order of the flat weight buffer, and the map from Hugging Face's tensor names.
 *
 * Called at start by server, trainer and tools; the table is immutable after clime_layout_make and clime_layout_freeze,
 * and any thread may read it. It owns its arrays. Invariant: tensors that a kernel reads as one matrix (q|k|v, gate|up,
 * all experts' gate|up) are contiguous, and every such joined tensor starts at a multiple of CLIME_LAYOUT_ALIGN
 * elements of the layout's type, so rows of all types are aligned for vector loads whatever precedes them.
 *
 * The order is that of the forward pass (embedding, layers, final norm, head): loading that overlaps reading with
 * upload, and an update that overlaps a step, both touch memory front to back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "model/weights/layout_int.h"

/* ---- rows ------------------------------------------------------------------------------------------------------ */

struct maker {
    struct clime_layout *l;
    const struct clime_config *c;
    int room;  /* slices allocated */
    int layer; /* layer of the added tensors; -1: names are complete */
};

static const struct clime_cut whole = {CLIME_SHARD_WHOLE, 1, 1}, rows = {CLIME_SHARD_ROWS, 1, 1},
                              pairs = {CLIME_SHARD_PAIRS, 1, 1}, vocab = {CLIME_SHARD_VOCAB, CLIME_VOCAB_UNIT, 1};

/* Appends one Hugging Face tensor, [n_rows, n_cols] or, with n_cols == 0, [n_rows]; returns its row of the table. */
static int add_typed(struct maker *m, const char *name, enum clime_param_kind kind, enum clime_dtype type,
                     int64_t n_rows, int64_t n_cols, struct clime_cut cut, bool joined) {
    struct clime_layout *l = m->l;
    CHECK(l->n_slices < m->room);
    struct clime_slice *s = &l->slices[l->n_slices];
    if (m->layer < 0)
        snprintf(s->name, sizeof s->name, "%s", name);
    else
        snprintf(s->name, sizeof s->name, "model.layers.%d.%s", m->layer, name);
    s->kind = kind;
    s->type = type;
    s->n_dim = n_cols ? 2 : 1;
    s->dim[0] = n_rows;
    s->dim[1] = n_cols;
    s->n = n_cols ? n_rows * n_cols : n_rows;
    s->offset = joined ? l->bytes : clime_align_up(l->bytes, clime_layout_step(l));
    s->bytes = s->n * (int64_t)clime_dtype_bytes(type);
    s->joined = joined;
    s->decay = kind == CLIME_PARAM_MATRIX;
    s->update = CLIME_ADAMW;
    s->cut = cut;
    l->bytes = s->offset + s->bytes;
    return l->n_slices++;
}

static int add(struct maker *m, const char *name, enum clime_param_kind kind, int64_t n_rows, int64_t n_cols,
               struct clime_cut cut, bool joined) {
    return add_typed(m, name, kind, m->l->type, n_rows, n_cols, cut, joined);
}

static int matrix(struct maker *m, const char *name, int64_t n_rows, int64_t n_cols, struct clime_cut cut) {
    return add(m, name, CLIME_PARAM_MATRIX, n_rows, n_cols, cut, false);
}

static int norm(struct maker *m, const char *name, int64_t n) {
    return add(m, name, CLIME_PARAM_NORM, n, 0, whole, false);
}

static void make_attention(struct maker *m, int *at) {
    const struct clime_config *c = m->c;
    const struct clime_cut heads = {CLIME_SHARD_HEADS, c->Dh, 1},
                           kv = {.rule = CLIME_SHARD_HEADS, .unit = c->Dh, .stacked = 1, .lent = true};
    const enum clime_param_kind M = CLIME_PARAM_MATRIX, B = CLIME_PARAM_BIAS;
    int64_t D = c->D, Q = (int64_t)c->H * c->Dh, KV = (int64_t)c->HK * c->Dh;
    at[CLIME_W_LN1] = norm(m, "input_layernorm.weight", D);
    at[CLIME_W_QKV] = matrix(m, "self_attn.q_proj.weight", Q, D, heads);
    add(m, "self_attn.k_proj.weight", M, KV, D, kv, true);
    add(m, "self_attn.v_proj.weight", M, KV, D, kv, true);
    if (c->qkv_bias) {
        at[CLIME_W_QKV_BIAS] = add(m, "self_attn.q_proj.bias", B, Q, 0, heads, false);
        add(m, "self_attn.k_proj.bias", B, KV, 0, kv, true);
        add(m, "self_attn.v_proj.bias", B, KV, 0, kv, true);
    }
    if (c->qk_norm) {
        at[CLIME_W_Q_NORM] = norm(m, "self_attn.q_norm.weight", c->Dh);
        at[CLIME_W_K_NORM] = norm(m, "self_attn.k_norm.weight", c->Dh);
    }
    at[CLIME_W_O] = matrix(m, "self_attn.o_proj.weight", D, Q, rows);
    if (c->o_bias) at[CLIME_W_O_BIAS] = add(m, "self_attn.o_proj.bias", B, D, 0, rows, false);
    if (c->post_norms) at[CLIME_W_O_NORM] = norm(m, "post_self_attn_layernorm.weight", D);
}

static void make_latent(struct maker *m, int *at) {
    const struct clime_config *c = m->c;
    const struct clime_latent *l = &c->latent;
    const struct clime_cut queries = {CLIME_SHARD_HEADS, c->Dh, 1}, heads = {CLIME_SHARD_HEADS, l->Dn + l->Dv, 1};
    int64_t D = c->D, Q = (int64_t)c->H * c->Dh;
    at[CLIME_W_LN1] = norm(m, "input_layernorm.weight", D);
    if (c->q_rank) {
        at[CLIME_W_Q_A] = matrix(m, "self_attn.q_a_proj.weight", c->q_rank, D, whole);
        at[CLIME_W_Q_A_NORM] = norm(m, "self_attn.q_a_layernorm.weight", c->q_rank);
        at[CLIME_W_QKV] = matrix(m, "self_attn.q_b_proj.weight", Q, c->q_rank, queries);
    } else {
        at[CLIME_W_QKV] = matrix(m, "self_attn.q_proj.weight", Q, D, queries);
    }
    at[CLIME_W_KV_A] = matrix(m, "self_attn.kv_a_proj_with_mqa.weight", l->R + l->Dr, D, whole);
    at[CLIME_W_KV_A_NORM] = norm(m, "self_attn.kv_a_layernorm.weight", l->R);
    at[CLIME_W_KV_B] = matrix(m, "self_attn.kv_b_proj.weight", (int64_t)c->H * (l->Dn + l->Dv), l->R, heads);
    m->l->slices[at[CLIME_W_KV_B]].by_head = true;
    at[CLIME_W_O] = matrix(m, "self_attn.o_proj.weight", D, (int64_t)c->H * l->Dv, rows);
}

static void make_swiglu(struct maker *m, int *at) {
    const struct clime_config *c = m->c;
    int64_t D = c->D, F = c->F;
    at[CLIME_W_LN2] = norm(m, "post_attention_layernorm.weight", D);
    if (c->fused_gate_up) {
        struct clime_cut both = {CLIME_SHARD_PAIRS, 1, 2};
        at[CLIME_W_GU] = matrix(m, "mlp.gate_up_proj.weight", 2 * F, D, both);
    } else {
        at[CLIME_W_GU] = matrix(m, "mlp.gate_proj.weight", F, D, pairs);
        add(m, "mlp.up_proj.weight", CLIME_PARAM_MATRIX, F, D, pairs, true);
    }
    at[CLIME_W_DOWN] = matrix(m, "mlp.down_proj.weight", D, F, rows);
    if (c->post_norms) at[CLIME_W_DOWN_NORM] = norm(m, "post_mlp_layernorm.weight", D);
}

/* One matrix each, so that an expert's place follows from its number: gate|up of expert after expert, then down.
 * transformers 5's tensors, experts.gate_up_proj and experts.down_proj, are these bytes. */
static void make_each_expert(struct maker *m, int *at) {
    const struct clime_config *c = m->c;
    int64_t D = c->D, F = c->F_expert;
    char name[64];
    for (int e = 0; e < c->router.E; e++) {
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        int row = add(m, name, CLIME_PARAM_MATRIX, F, D, pairs, e > 0);
        if (e == 0) at[CLIME_W_EXPERTS_GU] = row;
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        add(m, name, CLIME_PARAM_MATRIX, F, D, pairs, true);
    }
    for (int e = 0; e < c->router.E; e++) {
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        int row = add(m, name, CLIME_PARAM_MATRIX, D, F, rows, e > 0);
        if (e == 0) at[CLIME_W_EXPERTS_DOWN] = row;
    }
    m->l->slices[at[CLIME_W_EXPERTS_GU]].n_experts = m->l->slices[at[CLIME_W_EXPERTS_DOWN]].n_experts = c->router.E;
}

static void make_experts(struct maker *m, int *at) {
    const struct clime_config *c = m->c;
    int64_t D = c->D, F = c->F_shared;
    at[CLIME_W_LN2] = norm(m, "post_attention_layernorm.weight", D);
    at[CLIME_W_ROUTER] = matrix(m, "mlp.gate.weight", c->router.E, D, whole);
    if (c->router_bias) {
        int row =
            add_typed(m, "mlp.gate.e_score_correction_bias", CLIME_PARAM_BIAS, CLIME_F32, c->router.E, 0, whole, false);
        m->l->slices[row].update = CLIME_CONSTANT;
        at[CLIME_W_ROUTER_BIAS] = row;
    }
    if (F) {
        bool many = c->router.sigmoid; /* in their name */
        at[CLIME_W_SHARED_GU] =
            matrix(m, many ? "mlp.shared_experts.gate_proj.weight" : "mlp.shared_expert.gate_proj.weight", F, D, pairs);
        add(m, many ? "mlp.shared_experts.up_proj.weight" : "mlp.shared_expert.up_proj.weight", CLIME_PARAM_MATRIX, F,
            D, pairs, true);
        at[CLIME_W_SHARED_DOWN] =
            matrix(m, many ? "mlp.shared_experts.down_proj.weight" : "mlp.shared_expert.down_proj.weight", D, F, rows);
    }
    if (c->shared_gate) at[CLIME_W_SHARED_GATE] = matrix(m, "mlp.shared_expert_gate.weight", 1, D, whole);
    make_each_expert(m, at);
}

static void (*const mixers[])(struct maker *m,
                              int *at) = {[CLIME_MIXER_ATTENTION] = make_attention, [CLIME_MIXER_LATENT] = make_latent};
static void (*const mlps[])(struct maker *m,
                            int *at) = {[CLIME_MLP_SWIGLU] = make_swiglu, [CLIME_MLP_EXPERTS] = make_experts};

/* Hash of names and shapes, word by word; places follow from them. Names are hashed with their trailing zeros, 96
 * bytes. */
static uint64_t layout_hash(const struct clime_layout *l) {
    uint64_t h = (uint64_t)l->n_slices;
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        uint64_t words[sizeof s->name / 8 + 3];
        memcpy(words, s->name, sizeof s->name);
        uint64_t *tail = words + sizeof s->name / 8;
        tail[0] = (uint64_t)s->dim[0];
        tail[1] = (uint64_t)s->dim[1];
        tail[2] = h;
        h = clime_hash64(words, CLIME_COUNT(words));
    }
    return h;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

/* The entry of a name in by_name: its row's, or the empty one where it belongs. */
static int32_t *place_of(const struct clime_layout *l, const char *name) {
    uint32_t i = (uint32_t)clime_hash_bytes(name, strlen(name), 0) & l->by_name_mask;
    while (l->by_name[i] >= 0 && strcmp(l->slices[l->by_name[i]].name, name) != 0) i = (i + 1) & l->by_name_mask;
    return &l->by_name[i];
}

/* Open addressing, at most half full: a checkpoint of experts names 18,000 tensors, each looked up once. */
static void index_names(struct clime_layout *l) {
    uint32_t n = 4;
    while (n < 2 * (uint32_t)l->n_slices) n *= 2;
    l->by_name_mask = n - 1;
    l->by_name = xmalloc(n * sizeof *l->by_name);
    memset(l->by_name, -1, n * sizeof *l->by_name);
    for (int i = 0; i < l->n_slices; i++) *place_of(l, l->slices[i].name) = i;
}

const struct clime_slice *clime_layout_find(const struct clime_layout *l, const char *hf_name) {
    int32_t i = *place_of(l, hf_name);
    return i < 0 ? NULL : &l->slices[i];
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

void clime_layout_make(const struct clime_config *c, enum clime_dtype type, struct clime_layout *out) {
    memset(out, 0, sizeof *out);
    out->type = type;
    struct maker m = {.l = out, .c = c, .room = 3 + c->L * (20 + 3 * c->router.E), .layer = -1};
    out->n_layers = c->L;
    out->layer = xcalloc((size_t)c->L, sizeof *out->layer);
    out->slices = xcalloc((size_t)m.room, sizeof *out->slices);
    out->embed = matrix(&m, "model.embed_tokens.weight", c->V, c->D, whole);
    for (m.layer = 0; m.layer < c->L; m.layer++) {
        struct clime_layer_at *at = &out->layer[m.layer];
        at->mixer = c->latent.R ? CLIME_MIXER_LATENT : CLIME_MIXER_ATTENTION;
        at->mlp = clime_config_has_experts(c, m.layer) ? CLIME_MLP_EXPERTS : CLIME_MLP_SWIGLU;
        for (int i = 0; i < CLIME_W_N; i++) at->w[i] = -1;
        mixers[at->mixer](&m, at->w);
        mlps[at->mlp](&m, at->w);
    }
    m.layer = -1;
    out->norm = norm(&m, "model.norm.weight", c->D);
    out->head = c->tied ? out->embed : matrix(&m, "lm_head.weight", c->V, c->D, vocab);
    out->bytes = clime_align_up(out->bytes, clime_layout_step(out));
    out->hash = layout_hash(out);
    index_names(out);
    clime_layout_lay_states(out);
}

int64_t clime_layout_params(const struct clime_layout *l, bool trained) {
    int64_t n = 0;
    for (int i = 0; i < l->n_slices; i++)
        if (!trained || l->slices[i].update != CLIME_FROZEN) n += l->slices[i].n;
    return n;
}

bool clime_typed_run(const struct clime_layout *l, int64_t lo, int64_t hi, struct clime_typed_run *out) {
    int i = l->n_slices - 1;
    *out = (struct clime_typed_run){.lo = lo, .hi = hi};
    if (lo >= hi) return false;
    while (i > 0 && l->slices[i].offset > lo) i--;
    out->type = l->slices[i].type;
    while (++i < l->n_slices && l->slices[i].type == out->type) continue;
    if (i < l->n_slices && l->slices[i].offset < hi) out->hi = l->slices[i].offset;
    return true;
}

void clime_layout_free(struct clime_layout *l) {
    free(l->layer);
    free(l->slices);
    free(l->by_name);
    memset(l, 0, sizeof *l);
}
