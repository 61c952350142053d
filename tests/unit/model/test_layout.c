/* The parameter table: what its rows say of every family, names found by hash, gradients and states of what is
 * trained laid out without the frozen, shards that put the whole together again; and that freezing changes no bit of
 * the gradients that are left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/rng.h"
#include "model/backward.h"
#include "model/weights/layout.h"

/* Shapes that several devices can share, one a family. */
static const struct clime_config configs[] = {
    {.family = CLIME_QWEN3,
     .D = 64,
     .L = 2,
     .H = 8,
     .HK = 4,
     .Dh = 6,
     .F = 40,
     .V = 20000,
     .tied = true,
     .qk_norm = true},
    {.family = CLIME_QWEN3,
     .D = 64,
     .L = 1,
     .H = 8,
     .HK = 8,
     .Dh = 6,
     .F = 40,
     .V = 9000,
     .qkv_bias = true,
     .o_bias = true,
     .qk_norm = true},
    {.family = CLIME_QWEN2, .D = 32, .L = 2, .H = 4, .HK = 4, .Dh = 8, .F = 12, .V = 17000, .qkv_bias = true},
    {.family = CLIME_LLAMA, .D = 32, .L = 2, .H = 4, .HK = 4, .Dh = 8, .F = 12, .V = 17000},
    {.family = CLIME_GLM4,
     .D = 32,
     .L = 2,
     .H = 4,
     .HK = 4,
     .Dh = 8,
     .F = 12,
     .V = 17000,
     .qkv_bias = true,
     .post_norms = true,
     .fused_gate_up = true},
    {.family = CLIME_QWEN2_MOE,
     .D = 32,
     .L = 3,
     .H = 4,
     .HK = 4,
     .Dh = 8,
     .F = 12,
     .V = 17000,
     .qkv_bias = true,
     .router = {.E = 8, .k = 2},
     .F_expert = 12,
     .F_shared = 20,
     .shared_gate = true,
     .dense = {0, 1, 0}},
    {.family = CLIME_GLM4_MOE,
     .D = 32,
     .L = 2,
     .H = 4,
     .HK = 4,
     .Dh = 8,
     .F = 12,
     .V = 17000,
     .router = {.E = 8, .k = 2, .sigmoid = true},
     .F_expert = 12,
     .F_shared = 8,
     .router_bias = true,
     .dense = {1, 0}},
    {.family = CLIME_DEEPSEEK_V3,
     .D = 32,
     .L = 1,
     .H = 4,
     .HK = 4,
     .Dh = 12,
     .F = 12,
     .V = 17000,
     .latent = {16, 8, 4, 6},
     .q_rank = 20,
     .router = {.E = 8, .k = 2, .sigmoid = true},
     .F_expert = 12,
     .F_shared = 8,
     .router_bias = true,
     .dense = {1}},
    {.family = CLIME_DEEPSEEK_V3,
     .D = 32,
     .L = 1,
     .H = 4,
     .HK = 4,
     .Dh = 12,
     .F = 12,
     .V = 17000,
     .latent = {16, 8, 4, 6},
     .router = {.E = 8, .k = 2, .sigmoid = true},
     .F_expert = 12,
     .F_shared = 8,
     .router_bias = true},
};

static bool ends_with(const char *s, const char *end) {
    return strlen(s) >= strlen(end) && !strcmp(s + strlen(s) - strlen(end), end);
}

static enum clime_shard_rule rule_of(const char *name) {
    if (strstr(name, "norm") || strstr(name, "mlp.gate.") || strstr(name, "expert_gate")) return CLIME_SHARD_WHOLE;
    if (strstr(name, "q_a_proj") || strstr(name, "kv_a_proj")) return CLIME_SHARD_WHOLE;
    if (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "v_proj")) return CLIME_SHARD_HEADS;
    if (strstr(name, "q_b_proj") || strstr(name, "kv_b_proj")) return CLIME_SHARD_HEADS;
    if (strstr(name, "gate") || strstr(name, "up_proj")) return CLIME_SHARD_PAIRS;
    if (strstr(name, "embed")) return CLIME_SHARD_WHOLE;
    return strstr(name, "lm_head") ? CLIME_SHARD_VOCAB : CLIME_SHARD_ROWS;
}

static void rows_say_what_tensors_are(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(configs); i++) {
        const struct clime_config *c = &configs[i];
        struct clime_layout l;
        clime_layout_make(c, CLIME_BF16, &l);
        for (int k = 0; k < l.n_slices; k++) {
            const struct clime_slice *s = &l.slices[k];
            bool norm = strstr(s->name, "norm") != NULL, bias = ends_with(s->name, "bias");
            const bool constant = ends_with(s->name, "correction_bias");
            assert_int_equal(s->kind, norm ? CLIME_PARAM_NORM : bias ? CLIME_PARAM_BIAS : CLIME_PARAM_MATRIX);
            assert_int_equal(s->decay, !norm && !bias);
            assert_int_equal(s->cut.rule, rule_of(s->name));
            assert_int_equal(s->cut.stacked, strstr(s->name, "gate_up") ? 2 : 1);
            assert_int_equal(s->type, constant ? CLIME_F32 : CLIME_BF16);
            assert_int_equal(s->update, constant ? CLIME_CONSTANT : CLIME_ADAMW);
            assert_true(c->router_bias || (s->grad == s->offset / 2 && s->state == s->grad)); /* with nothing frozen */
            assert_true(!constant || (s->grad < 0 && s->state < 0));
            assert_int_equal(s->joined, strstr(s->name, "k_proj") || strstr(s->name, "v_proj") ||
                                            strstr(s->name, ".up_proj") ||
                                            (strstr(s->name, ".experts.") && !strstr(s->name, ".experts.0.")));
        }
        assert_true(c->router_bias || (l.n_grads == l.bytes / 2 && l.n_states == l.bytes / 2));
        assert_true(!l.frozen && l.state_hash == l.hash && l.first_trained == 0);
        clime_layout_free(&l);
    }
}

/* 13,000 names, as many as a checkpoint of experts has, each found and no other. */
static void names_are_found(void **state) {
    (void)state;
    struct clime_config c = {
        .D = 2, .L = 1024, .H = 1, .HK = 1, .Dh = 2, .F = 2, .V = 2, .qkv_bias = true, .o_bias = true, .qk_norm = true};
    struct clime_layout l;
    char other[128];
    clime_layout_make(&c, CLIME_BF16, &l);
    assert_true(l.n_slices > 13000);
    assert_true(l.by_name_mask + 1 >= 2 * (uint32_t)l.n_slices && l.by_name_mask < 4 * (uint32_t)l.n_slices);
    for (int i = 0; i < l.n_slices; i++) {
        assert_ptr_equal(clime_layout_find(&l, l.slices[i].name), &l.slices[i]);
        snprintf(other, sizeof other, "%s.", l.slices[i].name);
        assert_null(clime_layout_find(&l, other));
    }
    assert_null(clime_layout_find(&l, ""));
    clime_layout_free(&l);
}

/* ---- freezing -------------------------------------------------------------------------------------------------- */

/* The spans are the trained elements, each once and in order. */
static void check_spans(const struct clime_layout *l) {
    struct clime_param_span r;
    int64_t n = 0, want = 0, end = 0;
    for (int i = clime_param_span(l, 0, &r); r.n > 0; i = clime_param_span(l, i, &r)) {
        assert_true(r.state >= end && r.state + r.n <= l->n_states && r.grad + r.n <= l->n_grads);
        assert_int_equal(r.state % 64, r.offset / 2 % 64);
        assert_int_equal(r.grad % 64, r.offset / 2 % 64);
        end = r.state + r.n;
        for (int k = 0; k < l->n_slices; k++) { /* each row is in the span whole, or not at all */
            const struct clime_slice *s = &l->slices[k];
            const int64_t from = (s->offset - r.offset) / 2;
            if (s->offset < r.offset || from >= r.n) continue;
            assert_true(s->update == CLIME_ADAMW && s->decay == r.decay && s->type == r.type && from + s->n <= r.n);
            assert_true(s->state - r.state == from && s->grad - r.grad == from);
            n += s->n;
        }
    }
    for (int k = 0; k < l->n_slices; k++) want += l->slices[k].update == CLIME_ADAMW ? l->slices[k].n : 0;
    assert_int_equal(n, want);
}

static void the_frozen_take_no_room(void **state) {
    (void)state;
    struct clime_rng rng;
    struct clime_error e;
    clime_rng_init(&rng, 3);
    for (size_t i = 0; i < 40 * CLIME_COUNT(configs); i++) {
        struct clime_layout l;
        clime_layout_make(&configs[i / 40], CLIME_BF16, &l);
        bool *frozen = xcalloc((size_t)l.n_slices, sizeof *frozen);
        int64_t trained = 0, with_grad = 0;
        for (int k = 0; k < l.n_slices; k++) frozen[k] = clime_rng_below(&rng, 10) < i % 40 / 4;
        frozen[clime_rng_below(&rng, (uint64_t)l.n_slices)] = false;
        if (clime_layout_freeze(&l, frozen, &e)) fail_msg("%s", e.msg);
        check_spans(&l);
        for (int k = 0; k < l.n_slices; k++) {
            const struct clime_slice *s = &l.slices[k];
            const bool constant = s->update == CLIME_CONSTANT;
            assert_int_equal(s->update == CLIME_FROZEN, frozen[k] && !constant);
            assert_int_equal(s->state < 0, frozen[k] || constant);
            assert_true(s->grad >= 0 || frozen[k] || constant);
            trained += s->state < 0 ? 0 : s->n;
            with_grad += s->grad < 0 ? 0 : s->n;
        }
        assert_true(l.n_states >= trained && l.n_states <= trained + 128 * l.n_slices);
        assert_true(l.n_grads >= with_grad && l.n_grads <= with_grad + 64 * l.n_slices);
        memset(frozen, 1, (size_t)l.n_slices);
        assert_int_equal(clime_layout_freeze(&l, frozen, &e), CLIME_ERR_INPUT);
        free(frozen);
        clime_layout_free(&l);
    }
}

/* ---- shards ---------------------------------------------------------------------------------------------------- */

static void check_shards(const struct clime_layout *l, int n_ranks) {
    struct clime_error e;
    uint8_t *times = xcalloc((size_t)l->bytes, 1); /* that a byte is held */
    for (int r = 0; r < n_ranks; r++) {
        struct clime_shard s;
        if (clime_layout_shard(l, r, n_ranks, &s, &e)) fail_msg("%s", e.msg);
        int64_t end = 0;
        for (int i = 0; i < s.n_parts; i++) {
            const struct clime_shard_part *p = &s.parts[i];
            const struct clime_slice *t = &l->slices[p->slice];
            bool goes_on = t->joined || (i && s.parts[i - 1].slice == p->slice);
            assert_true(p->bytes > 0 || (p->bytes == 0 && t->cut.rule == CLIME_SHARD_EXPERT));
            assert_true(p->global >= t->offset && p->global + p->bytes <= t->offset + t->bytes);
            assert_int_equal(p->bytes % (t->bytes / t->dim[0]), 0); /* whole rows */
            assert_int_equal(p->local, goes_on ? end : (end + 127) / 128 * 128);
            end = p->local + p->bytes;
            for (int64_t k = p->global; k < p->global + p->bytes; k++) times[k]++;
        }
        assert_int_equal(s.bytes, (end + 127) / 128 * 128);
        if (n_ranks == 1) assert_int_equal(s.bytes, l->bytes);
        clime_shard_free(&s);
    }
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        int64_t heads = s->dim[0] / s->cut.unit;
        uint8_t want = s->cut.rule == CLIME_SHARD_WHOLE ? (uint8_t)n_ranks
                       : s->cut.lent && heads < n_ranks ? (uint8_t)(n_ranks / heads)
                                                        : 1;
        for (int64_t k = s->offset; k < s->offset + s->bytes; k++) assert_int_equal(times[k], want);
    }
    free(times);
}

static void shards_are_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(configs); i++) {
        struct clime_layout l;
        clime_layout_make(&configs[i], CLIME_BF16, &l);
        check_shards(&l, 1);
        check_shards(&l, 2);
        check_shards(&l, 4);
        if (configs[i].H == 8) check_shards(&l, 8); /* of which the first has 4 key/value heads */
        clime_layout_whole_experts(&l);
        check_shards(&l, 1);
        check_shards(&l, 2);
        check_shards(&l, 4);
        clime_layout_free(&l);
    }
}

static const struct clime_shard_part *part_of(const struct clime_layout *l, const struct clime_shard *s,
                                              const char *name) {
    for (int i = 0; i < s->n_parts; i++)
        if (ends_with(l->slices[s->parts[i].slice].name, name)) return &s->parts[i];
    fail_msg("no %s", name);
    return NULL;
}

/* By hand: rank 1 of 2. */
/* But for a block at its edges, what a server's rank has of a layer, and no rank before it, is the trainer's rank's. */
static void check_shares_in_parts(const struct clime_layout *l, const struct clime_parts *p, int64_t block) {
    struct clime_shard s[8];
    struct clime_range c;
    struct clime_error e;
    int n_checked = 0;
    for (int r = 0; r < p->who.world; r++) {
        if (clime_layout_shard(l, r, p->who.world, &s[r], &e)) fail_msg("%s", e.msg);
        for (int i = 0; i < s[r].n_parts; i++) {
            const struct clime_shard_part *x = &s[r].parts[i];
            const struct clime_slice *t = &l->slices[x->slice];
            bool of_layer = x->slice >= l->layer[0].w[CLIME_W_LN1] && x->slice < l->norm;
            bool first = t->cut.rule != CLIME_SHARD_WHOLE && (r == 0 || s[r - 1].parts[i].global != x->global);
            if (!of_layer || !first || t->grad < 0) continue;
            int64_t lo = t->grad + (x->global - t->offset) / 2 + block, hi = lo + x->bytes / 2 - 2 * block;
            for (int k = clime_parts_find(p, lo); k < p->n && clime_range_cut(&p->ranges[k], lo, hi, &c);
                 k++, n_checked++)
                assert_int_equal(c.rank, r);
        }
    }
    assert_true(n_checked > 0 || block > 64);
    for (int r = 0; r < p->who.world; r++) clime_shard_free(&s[r]);
}

/* Every element is one rank's, every block of the norm too; a layer is shared evenly; and what is updated is cut alike.
 */
static void check_parts(const struct clime_layout *l, struct clime_part who, int64_t block) {
    const int world = who.world;
    int64_t own[8] = {0}, at[8] = {0}, end = 0, updated = 0, of_layer[8] = {0};
    struct clime_parts p;
    int n;
    clime_parts_make(&p, l, (size_t)block, who);
    for (int i = 0; i < p.n; i++) {
        const struct clime_range *r = &p.ranges[i];
        assert_true(r->lo == end && r->hi > r->lo && r->rank >= 0 && r->rank < world);
        assert_true(world == 1 || r->lo % block == 0);
        assert_int_equal(r->at, at[r->rank]);
        at[r->rank] += r->hi - r->lo;
        own[r->rank] += r->hi - r->lo;
        assert_int_equal(clime_parts_find(&p, r->lo), i);
        assert_int_equal(clime_parts_find(&p, r->hi - 1), i);
        end = r->hi;
    }
    assert_int_equal(end, l->n_grads);
    assert_int_equal(p.own, own[world - 1]);
    const int64_t from = l->slices[l->layer[1].w[CLIME_W_LN1]].grad, to = l->slices[l->layer[2].w[CLIME_W_LN1]].grad;
    struct clime_range c;
    for (int i = 0; i < p.n && from >= 0 && to >= 0; i++)
        if (clime_range_cut(&p.ranges[i], from, to, &c)) of_layer[c.rank] += c.hi - c.lo;
    for (int r = 0; r < world && !who.experts && !who.as_shares && to - from >= 4 * block * world; r++)
        assert_true(of_layer[r] >= (to - from) / world - 2 * block && of_layer[r] <= (to - from) / world + 2 * block);
    struct clime_share *shares = clime_parts_shares(&p, l, &n);
    for (int i = 0; i < n; i++) {
        const struct clime_range *r = &p.ranges[shares[i].range];
        assert_true(shares[i].rank == r->rank && shares[i].at >= r->at &&
                    shares[i].at + shares[i].n <= r->at + (r->hi - r->lo));
        updated += shares[i].n;
    }
    for (int i = 0; i < l->n_slices; i++)
        if (l->slices[i].update == CLIME_ADAMW) updated -= l->slices[i].n;
    assert_int_equal(updated, 0);
    free(shares);
    if (who.as_shares) check_shares_in_parts(l, &p, block);
    clime_parts_free(&p);
}

static void parts_are_the_whole(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        const struct clime_config c = {.family = f ? CLIME_GLM4 : CLIME_QWEN3,
                                       .D = 96,
                                       .F = 200,
                                       .L = 5,
                                       .H = 4,
                                       .HK = 2,
                                       .Dh = 24,
                                       .V = 1000,
                                       .post_norms = f > 0,
                                       .tied = f == 0,
                                       .qk_norm = f == 0};
        struct clime_layout l;
        clime_layout_make(&c, CLIME_BF16, &l);
        for (int frozen = 0; frozen < 2; frozen++) {
            bool *rows = xcalloc((size_t)l.n_slices, sizeof *rows);
            struct clime_error e;
            for (int i = 0; i < l.n_slices; i++) rows[i] = frozen && strstr(l.slices[i].name, "layers.3.") != NULL;
            if (frozen) assert_int_equal(clime_layout_freeze(&l, rows, &e), CLIME_OK);
            free(rows);
            for (int world = 1; world <= 8; world *= 2)
                for (int64_t block = 64; block <= 1 << 20; block *= 8) {
                    check_parts(&l, (struct clime_part){world - 1, world}, block);
                    if (world == 2 || world == 4)
                        check_parts(&l, (struct clime_part){world - 1, world, .as_shares = true}, block);
                }
        }
        clime_layout_free(&l);
    }
}

/* Whole blocks, and experts' gradients where the experts are but for less than a block at each end. */
static void parts_follow_experts(void **state) {
    const struct clime_config c = {.family = CLIME_QWEN3_MOE,
                                   .D = 96,
                                   .F = 200,
                                   .F_expert = 72,
                                   .L = 5,
                                   .H = 4,
                                   .HK = 2,
                                   .Dh = 24,
                                   .V = 1000,
                                   .qk_norm = true,
                                   .router = {.E = 8, .k = 2, .scale = 1, .n_groups = 1, .k_groups = 1}};
    struct clime_layout l;
    (void)state;
    clime_layout_make(&c, CLIME_BF16, &l);
    for (int world = 2; world <= 8; world *= 2)
        for (int64_t block = 64, over = 2; block <= 1 << 20; block *= 8, over = over < world ? 2 * over : 2) {
            check_parts(&l, (struct clime_part){world - 1, world, (int)over}, block);
            struct clime_part who = {0, world, (int)over};
            struct clime_parts p;
            struct clime_range x;
            struct clime_stay s;
            clime_parts_make(&p, &l, (size_t)block, who);
            for (int i = 0; i < l.n_layers * CLIME_STAYS; i++) {
                assert_true(clime_layout_stays(&l, i / CLIME_STAYS, i % CLIME_STAYS, who, &s));
                assert_int_equal(s.each * over, (int64_t)8 * 72 * 96 * (i % CLIME_STAYS ? 1 : 2));
                for (int k = 0; k < p.n; k++) {
                    if (!clime_range_cut(&p.ranges[k], s.grad, s.grad + s.n, &x)) continue;
                    const int64_t own = s.grad + s.each * clime_stay_part(who, x.rank);
                    if (x.lo >= own && x.hi <= own + s.each) continue;
                    assert_true(x.hi - x.lo < block || (x.lo > own - block && x.hi < own + s.each + block));
                }
            }
            clime_parts_free(&p);
        }
    clime_layout_free(&l);
}

static void the_cut_is_where_it_should_be(void **state) {
    (void)state;
    struct clime_error e;
    struct clime_layout l;
    struct clime_shard s;
    clime_layout_make(&configs[0], CLIME_BF16, &l); /* D 64, 8 + 2 * 4 heads of 6, F 40, V 20000 */
    if (clime_layout_shard(&l, 1, 2, &s, &e)) fail_msg("%s", e.msg);
    const struct clime_shard_part *p = part_of(&l, &s, "embed_tokens.weight");
    assert_true(p->global == 0 && p->bytes == 2 * 20000 * 64);
    int64_t from, to;
    clime_layout_head_rows(&l, 1, 2, &from, &to); /* it is the embedding */
    assert_true(from == 10000 && to == 20000);
    clime_layout_head_rows(&l, 2, 3, &from, &to); /* 1250 units: 416, 417, 417 */
    assert_true(from == 833 * 16 && to == 20000);
    const struct clime_shard_part *q = part_of(&l, &s, "layers.0.self_attn.q_proj.weight");
    assert_true(q->global == l.slices[q->slice].offset + 2 * 4 * 6 * 64 && q->bytes == 2 * 4 * 6 * 64);
    const struct clime_shard_part *k = part_of(&l, &s, "layers.0.self_attn.k_proj.weight");
    assert_true(k->global == l.slices[k->slice].offset + 2 * 2 * 6 * 64 && k->bytes == 2 * 2 * 6 * 64);
    assert_int_equal(k->local, q->local + q->bytes); /* its q|k|v is one matrix */
    p = part_of(&l, &s, "layers.0.self_attn.o_proj.weight");
    assert_true(p->global == l.slices[p->slice].offset + 2 * 32 * 48 && p->bytes == 2 * 32 * 48);
    const struct clime_shard_part *up = part_of(&l, &s, "layers.0.mlp.up_proj.weight");
    p = part_of(&l, &s, "layers.0.mlp.gate_proj.weight");
    assert_true(p->global == l.slices[p->slice].offset + 2 * 20 * 64 && up->local == p->local + 2 * 20 * 64);
    clime_shard_free(&s);
    clime_layout_free(&l);

    clime_layout_make(&configs[4], CLIME_BF16, &l); /* gate and up in one tensor: D 32, F 12 */
    if (clime_layout_shard(&l, 1, 2, &s, &e)) fail_msg("%s", e.msg);
    p = part_of(&l, &s, "layers.0.mlp.gate_up_proj.weight");
    int64_t at = l.slices[p->slice].offset;
    assert_true(p[0].global == at + 2 * 6 * 32 && p[0].bytes == 2 * 6 * 32);
    assert_true(p[1].slice == p[0].slice && p[1].global == at + 2 * (12 + 6) * 32 &&
                p[1].local == p[0].local + 2 * 6 * 32);
    clime_shard_free(&s);
    clime_layout_free(&l);

    clime_layout_make(&configs[5], CLIME_BF16,
                      &l); /* 8 experts of D 32, F 12: of each the rank has 6 rows of gate and of up */
    if (clime_layout_shard(&l, 1, 2, &s, &e)) fail_msg("%s", e.msg);
    const struct clime_slice *all = &l.slices[l.layer[2].w[CLIME_W_EXPERTS_GU]];
    p = part_of(&l, &s, "layers.2.mlp.experts.0.gate_proj.weight");
    at = p->local;
    for (int i = 0; i < 8; i++, p += 2) {
        assert_true(p->global == all->offset + 2 * (i * 24 + 6) * 32 && p->local == at + 2 * i * 12 * 32 &&
                    p->bytes == 2 * 6 * 32);
        assert_true(p[1].global == p->global + 2 * 12 * 32 && p[1].local == p->local + 2 * 6 * 32);
    }
    p = part_of(&l, &s, "layers.2.mlp.experts.7.down_proj.weight"); /* and 16 of the 32 of down */
    assert_true(p->global == l.slices[p->slice].offset + 2 * 16 * 12 && p->bytes == 2 * 16 * 12);
    assert_int_equal(all->n_experts, 8);
    clime_shard_free(&s);

    clime_layout_whole_experts(&l); /* the rank has 4 to 7 */
    if (clime_layout_shard(&l, 1, 2, &s, &e)) fail_msg("%s", e.msg);
    p = part_of(&l, &s, "layers.2.mlp.experts.0.gate_proj.weight");
    at = p->local;
    for (int i = 0; i < 8; i++, p += 2) {
        int64_t n = i < 4 ? 0 : 2 * 12 * 32, begin = at + (i < 4 ? 0 : i - 4) * 2 * 24 * 32;
        assert_true(p->bytes == n && p->local == begin && p[1].bytes == n && p[1].local == begin + n);
        assert_true(p->global == all->offset + i * 2 * 24 * 32 && p[1].global == p->global + 2 * 12 * 32);
    }
    struct clime_shard_part cut; /* what lies in none of its experts is nobody's here */
    int i = clime_shard_first(&s, all->offset + 5);
    int64_t held = 0;
    for (; clime_shard_cut(&s, i, all->offset + 5, 2 * 4 * 24 * 32, &cut); i++) {
        assert_true(cut.bytes >= 0);
        held += cut.bytes;
    }
    assert_int_equal(held, 5); /* of expert 4 */
    clime_shard_free(&s);
    assert_int_equal(clime_layout_shard(&l, 0, 3, &s, &e), CLIME_ERR_INPUT);
    clime_layout_free(&l);
}

static void what_does_not_divide_is_refused(void **state) {
    (void)state;
    struct clime_error e;
    struct clime_layout l;
    struct clime_shard s;
    clime_layout_make(&configs[0], CLIME_BF16, &l);
    assert_int_equal(clime_layout_shard(&l, 0, 3, &s, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "3 devices cannot share the 8 heads of model.layers.0.self_attn.q_proj.weight"));
    assert_non_null(strstr(e.msg, "these numbers can: 1, 2, 4, 8"));
    assert_null(strstr(e.msg, "5"));
    clime_layout_free(&l);
    struct clime_config c = configs[0];
    c.V = 100;
    clime_layout_make(&c, CLIME_BF16, &l);
    assert_int_equal(clime_layout_shard(&l, 0, 8, &s, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "7 parts of the vocabulary of model.embed_tokens.weight"));
    clime_layout_free(&l);
    c = configs[0];
    c.H = 12;
    c.HK = 6;
    clime_layout_make(&c, CLIME_BF16, &l);
    assert_int_equal(clime_layout_shard(&l, 0, 4, &s, &e), CLIME_ERR_INPUT); /* neither a part nor a multiple of 4 */
    assert_non_null(strstr(e.msg, "6 heads of model.layers.0.self_attn.k_proj.weight"));
    clime_layout_free(&l);
    c = configs[5];
    c.F_expert = 6;
    clime_layout_make(&c, CLIME_BF16, &l);
    assert_int_equal(clime_layout_shard(&l, 0, 4, &s, &e), CLIME_ERR_INPUT);
    assert_non_null(
        strstr(e.msg, "4 devices cannot share the 6 pairs of rows of model.layers.0.mlp.experts.0.gate_proj.weight"));
    clime_layout_free(&l);
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

enum { ROWS = 12 };

static void run_backward(struct clime_model *m, enum clime_recompute recompute, float *grads) {
    struct clime_train *t;
    struct clime_error e;
    struct clime_train_options o = {.max_rows = ROWS, .max_seqs = 2, .recompute = recompute};
    int32_t ids[ROWS], row[ROWS], target[ROWS], start[] = {0, 7, ROWS};
    float inv_temp[ROWS], g[ROWS], logp[ROWS];
    for (int i = 0; i < ROWS; i++) {
        ids[i] = i * 5 % m->cfg.V;
        row[i] = i;
        target[i] = (i + 3) % m->cfg.V;
        inv_temp[i] = 1;
        g[i] = 0.25f - (float)(i % 3);
    }
    const struct clime_packed_batch b = {ROWS, 2, ids, start, ROWS, row, target, inv_temp};
    if (clime_train_open(m, &o, &t, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) { /* two micro-batches, which add up */
        if (clime_train_forward(t, &b, true, logp, NULL, &e)) fail_msg("%s", e.msg);
        if (clime_train_backward(t, &b, g, NULL, &e)) fail_msg("%s", e.msg);
    }
    m->ops->copy_out(m->dev, grads, clime_train_grads(t), (size_t)m->layout.n_grads * sizeof *grads);
    clime_train_close(t);
}

/* The gradients of what is trained are those of a run that trains everything. */
static void trained_gradients_keep_their_bits(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3_bias", "qwen2", "glm4", "qwen2_moe"};
    static const char *const frozen_names[] = {"mlp",
                                               "norm",
                                               "k_proj",
                                               "layers.0",
                                               "layers.",
                                               "embed",
                                               "bias",
                                               "head",
                                               "model.",
                                               "all but layers.1",
                                               "experts.1.",
                                               "mlp.gate",
                                               "all but shared_expert"};
    for (size_t i = 0; i < 2 * CLIME_COUNT(models) * CLIME_COUNT(frozen_names); i++) {
        const char *root = getenv("CLIME_GOLDEN"), *which = frozen_names[i / 2 / CLIME_COUNT(models)];
        char *dir = xasprintf("%s/%s", root ? root : "tests/golden", models[i / 2 % CLIME_COUNT(models)]);
        struct clime_model_options o = {.device = "cpu", .dtype = i % 2 ? "bf16" : "f32", .dev = {.n_threads = 1}};
        enum clime_recompute recompute = (enum clime_recompute)(i % 3);
        struct clime_model *m;
        struct clime_error e;
        if (clime_model_open(dir, &o, &m, &e)) fail_msg("%s", e.msg);
        int n = m->layout.n_slices, n_left = 0;
        const size_t bytes = (size_t)m->layout.n_grads * sizeof(float);
        float *all = xmalloc(bytes), *some = xmalloc(bytes);
        int64_t *grad = xcalloc((size_t)m->layout.n_slices, sizeof *grad); /* of all */
        bool *frozen = xcalloc((size_t)n, sizeof *frozen);
        for (int k = 0; k < n; k++) grad[k] = m->layout.slices[k].grad;
        run_backward(m, recompute, all);
        bool others = strncmp(which, "all but ", 8) == 0;
        const char *part = others ? which + 8 : which;
        for (int k = 0; k < n; k++) n_left += !(frozen[k] = !strstr(m->layout.slices[k].name, part) == others);
        if (n_left) { /* a tied model has nothing but "model." */
            if (clime_layout_freeze(&m->layout, frozen, &e)) fail_msg("%s", e.msg);
            run_backward(m, recompute, some);
            for (int k = 0; k < n; k++) {
                const struct clime_slice *s = &m->layout.slices[k];
                if (!frozen[k] && grad[k] >= 0 &&
                    memcmp(all + grad[k], some + s->grad, (size_t)s->n * sizeof *all) != 0)
                    fail_msg("%s without %s: gradient of %s", dir, which, s->name);
            }
        }
        free(all);
        free(some);
        free(grad);
        free(frozen);
        free(dir);
        clime_model_close(m);
    }
}

int main(void) {
    clime_log_open("test", CLIME_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_say_what_tensors_are),
                                       cmocka_unit_test(names_are_found),
                                       cmocka_unit_test(the_frozen_take_no_room),
                                       cmocka_unit_test(shards_are_the_whole),
                                       cmocka_unit_test(parts_are_the_whole),
                                       cmocka_unit_test(parts_follow_experts),
                                       cmocka_unit_test(the_cut_is_where_it_should_be),
                                       cmocka_unit_test(what_does_not_divide_is_refused),
                                       cmocka_unit_test(trained_gradients_keep_their_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
