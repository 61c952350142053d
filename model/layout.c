/* The fixed order of the flat weight buffer and the map between it and Hugging Face's tensor names.
 *
 * Called at start by server, trainer and tools; the layout is immutable after clime_layout_make and any thread may read
 * it. It owns its arrays. The invariant: tensors that a kernel reads as one matrix (q|k|v, gate|up) are neighbours
 * without a gap, and every such joined tensor starts at a multiple of ALIGN elements, so that rows of all types are
 * aligned for vector loads whatever the shapes before them.
 *
 * The order is that of use in the forward pass (embedding, layers, final norm, head): a start that reads the
 * checkpoint while it uploads, and an update that overlaps with a step, both touch memory front to back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "model/weights.h"

#define ALIGN 64 /* elements: 128 bytes in bf16, a cache line pair */

struct maker {
    struct clime_layout *l;
    int room; /* slices allocated */
};

/* Starts a joined tensor: returns its offset. */
static int64_t begin(struct maker *m) {
    m->l->n = (m->l->n + ALIGN - 1) / ALIGN * ALIGN;
    return m->l->n;
}

/* Appends one Hugging Face tensor, [rows, cols] or, with cols == 0, [rows]. layer < 0: name is the whole name. */
static void add(struct maker *m, int layer, const char *name, int64_t rows, int64_t cols) {
    CHECK(m->l->n_slices < m->room);
    struct clime_slice *s = &m->l->slices[m->l->n_slices++];
    if (layer < 0)
        snprintf(s->name, sizeof s->name, "%s", name);
    else
        snprintf(s->name, sizeof s->name, "model.layers.%d.%s", layer, name);
    s->offset = m->l->n;
    s->n_dim = cols ? 2 : 1;
    s->dim[0] = rows;
    s->dim[1] = cols;
    s->n = cols ? rows * cols : rows;
    s->decay = cols != 0;
    m->l->n += s->n;
}

static int64_t one(struct maker *m, int layer, const char *name, int64_t rows, int64_t cols) {
    int64_t at = begin(m);
    add(m, layer, name, rows, cols);
    return at;
}

static void make_layer(struct maker *m, const struct clime_config *c, int i, struct clime_layer_at *at) {
    int64_t D = c->D, F = c->F, Q = (int64_t)c->H * c->Dh, KV = (int64_t)c->HK * c->Dh;
    *at = (struct clime_layer_at){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    at->ln1 = one(m, i, "input_layernorm.weight", D, 0);
    at->qkv = begin(m);
    add(m, i, "self_attn.q_proj.weight", Q, D);
    add(m, i, "self_attn.k_proj.weight", KV, D);
    add(m, i, "self_attn.v_proj.weight", KV, D);
    if (c->qkv_bias) {
        at->qkv_bias = begin(m);
        add(m, i, "self_attn.q_proj.bias", Q, 0);
        add(m, i, "self_attn.k_proj.bias", KV, 0);
        add(m, i, "self_attn.v_proj.bias", KV, 0);
    }
    if (c->qk_norm) {
        at->q_norm = one(m, i, "self_attn.q_norm.weight", c->Dh, 0);
        at->k_norm = one(m, i, "self_attn.k_norm.weight", c->Dh, 0);
    }
    at->o = one(m, i, "self_attn.o_proj.weight", D, Q);
    if (c->o_bias) at->o_bias = one(m, i, "self_attn.o_proj.bias", D, 0);
    if (c->post_norms) at->post_attn = one(m, i, "post_self_attn_layernorm.weight", D, 0);
    at->ln2 = one(m, i, "post_attention_layernorm.weight", D, 0);
    at->gu = begin(m);
    if (c->fused_gate_up) {
        add(m, i, "mlp.gate_up_proj.weight", 2 * F, D);
    } else {
        add(m, i, "mlp.gate_proj.weight", F, D);
        add(m, i, "mlp.up_proj.weight", F, D);
    }
    at->down = one(m, i, "mlp.down_proj.weight", D, F);
    if (c->post_norms) at->post_mlp = one(m, i, "post_mlp_layernorm.weight", D, 0);
}

/* Names, shapes and offsets folded word by word. The name is folded with its trailing zeros, 96 bytes. */
static uint64_t layout_hash(const struct clime_layout *l) {
    uint64_t h = (uint64_t)l->n;
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        uint64_t words[sizeof s->name / 8 + 4];
        memcpy(words, s->name, sizeof s->name);
        uint64_t *tail = words + sizeof s->name / 8;
        tail[0] = (uint64_t)s->offset;
        tail[1] = (uint64_t)s->dim[0];
        tail[2] = (uint64_t)s->dim[1];
        tail[3] = h;
        h = clime_hash64(words, CLIME_COUNT(words));
    }
    return h;
}

void clime_layout_make(const struct clime_config *c, struct clime_layout *out) {
    memset(out, 0, sizeof *out);
    struct maker m = {.l = out, .room = 3 + 20 * c->L};
    out->layer = xcalloc((size_t)c->L, sizeof *out->layer);
    out->slices = xcalloc((size_t)m.room, sizeof *out->slices);
    out->embed = one(&m, -1, "model.embed_tokens.weight", c->V, c->D);
    for (int i = 0; i < c->L; i++) make_layer(&m, c, i, &out->layer[i]);
    out->norm = one(&m, -1, "model.norm.weight", c->D, 0);
    out->head = c->tied ? out->embed : one(&m, -1, "lm_head.weight", c->V, c->D);
    out->n = begin(&m);
    out->hash = layout_hash(out);
}

void clime_layout_free(struct clime_layout *l) {
    free(l->layer);
    free(l->slices);
    memset(l, 0, sizeof *l);
}

const struct clime_slice *clime_layout_find(const struct clime_layout *l, const char *hf_name) {
    for (int i = 0; i < l->n_slices; i++)
        if (strcmp(l->slices[i].name, hf_name) == 0) return &l->slices[i];
    return NULL;
}
