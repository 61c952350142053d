/* Ranges to ranges: what each device of a server takes out of the parts of any number of owners is its share and
 * nothing else, each element once among those that count, in as few pieces as there can be; for cuts at any element,
 * heads that do not divide by the number of owners, a tied embedding, gates and ups that are one tensor, experts in
 * rows and whole. Ranges with a gap, an overlap or a stranger are refused by the tensor's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "model/weights/pieces.h"

#define MOST_RANGES 64

static const struct clime_config configs[] = {
    {.family = CLIME_QWEN3,
     .D = 24,
     .L = 3,
     .H = 6,
     .HK = 2,
     .Dh = 5,
     .F = 36,
     .V = 30000,
     .tied = true,
     .qk_norm = true},
    {.family = CLIME_QWEN2, .D = 24, .L = 2, .H = 12, .HK = 4, .Dh = 6, .F = 12, .V = 17000, .qkv_bias = true},
    {.family = CLIME_GLM4,
     .D = 24,
     .L = 2,
     .H = 12,
     .HK = 12,
     .Dh = 3,
     .F = 12,
     .V = 30000,
     .post_norms = true,
     .fused_gate_up = true},
    {.family = CLIME_GLM4_MOE,
     .D = 24,
     .L = 2,
     .H = 12,
     .HK = 12,
     .Dh = 4,
     .F = 12,
     .V = 30000,
     .router = {.E = 12, .k = 2, .sigmoid = true},
     .F_expert = 12,
     .F_shared = 12,
     .router_bias = true,
     .dense = {1, 0}},
};

enum { UNIT = 4 }; /* bytes of the widest number, which no range cuts */

/* n ranges of `owners` in any order, cut anywhere, at any places of their memory. */
static void cut(struct clime_rng *rng, const struct clime_layout *l, int owners, int n, struct clime_range *out) {
    for (int64_t i = 0, lo = 0; i < n; i++) {
        const int64_t most = (l->bytes - lo) / UNIT - (n - 1 - i);
        const int64_t hi = i == n - 1 ? l->bytes : lo + (1 + (int64_t)clime_rng_below(rng, (uint64_t)most)) * UNIT;
        out[i] = (struct clime_range){.lo = lo,
                                      .hi = hi,
                                      .at = (int64_t)clime_rng_below(rng, 1000) * UNIT,
                                      .rank = (int)clime_rng_below(rng, (uint64_t)owners)};
        lo = hi;
    }
}

/* In the owner's memory it lies where the ranges say, and all of it together. */
static void check_owner(const struct clime_piece *p, const struct clime_range *ranges, int n) {
    int64_t at = p->global;
    struct clime_range c;
    for (int k = 0; k < n; k++) {
        if (!clime_range_cut(&ranges[k], at, p->global + p->bytes, &c)) continue;
        assert_int_equal(c.lo, at);
        assert_int_equal(c.rank, p->owner);
        assert_int_equal(c.at, p->from + (c.lo - p->global));
        at = c.hi;
    }
    assert_int_equal(at, p->global + p->bytes);
}

/* Bytes of the share; *counted: those that no rank before has. */
static int64_t check_rank(const struct clime_layout *l, int rank, int n_ranks, const struct clime_range *ranges, int n,
                          int64_t *counted) {
    struct clime_piece *pieces;
    struct clime_shard s;
    struct clime_error e;
    int64_t taken = 0, held = 0;
    int n_pieces, k = 0;
    if (clime_pieces_make(l, rank, n_ranks, ranges, n, &pieces, &n_pieces, &e)) fail_msg("%s", e.msg);
    if (clime_layout_shard(l, rank, n_ranks, &s, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < n_pieces; i++) {
        const struct clime_piece *p = &pieces[i], *before = p - 1;
        check_owner(p, ranges, n);
        taken += p->bytes;
        if (!p->again) *counted += p->bytes;
        if (i) assert_true(p->global >= before->global + before->bytes && p->to >= before->to + before->bytes);
        if (i && p->owner == before->owner && p->again == before->again &&
            p->global == before->global + before->bytes && p->to == before->to + before->bytes)
            assert_int_not_equal(p->from, before->from + before->bytes);
    }
    for (int i = 0; i < s.n_parts; i++) { /* each part is in pieces that follow each other */
        const struct clime_shard_part *x = &s.parts[i];
        for (int64_t at = x->global; at < x->global + x->bytes;) {
            while (k < n_pieces && pieces[k].global + pieces[k].bytes <= at) k++;
            assert_true(k < n_pieces && pieces[k].global <= at);
            assert_int_equal(pieces[k].to + (at - pieces[k].global), x->local + (at - x->global));
            at = pieces[k].global + pieces[k].bytes;
        }
        held += x->bytes;
    }
    assert_int_equal(taken, held);
    clime_shard_free(&s);
    free(pieces);
    return taken;
}

static void check_server(const struct clime_layout *l, int n_ranks, const struct clime_range *ranges, int n) {
    int64_t counted = 0, all = 0, taken = 0;
    for (int i = 0; i < l->n_slices; i++) all += l->slices[i].bytes;
    for (int r = 0; r < n_ranks; r++) taken += check_rank(l, r, n_ranks, ranges, n, &counted);
    assert_int_equal(counted, all);
    assert_true(n_ranks == 1 ? taken == all : taken > all); /* norms are on all */
}

static void every_rank_takes_its_share(void **state) {
    struct clime_range ranges[MOST_RANGES];
    struct clime_error e;
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 12);
    for (size_t i = 0; i < 2 * CLIME_COUNT(configs); i++) {
        struct clime_layout l;
        clime_layout_make(&configs[i / 2], CLIME_BF16, &l);
        if (i % 2) clime_layout_whole_experts(&l);
        for (int owners = 1; owners <= 5; owners++)
            for (int ranks = 1; ranks <= 4; ranks++) {
                struct clime_shard s;
                if (clime_layout_shard(&l, 0, ranks, &s, &e)) continue; /* 6 heads over 4 */
                clime_shard_free(&s);
                const int n = owners + (int)clime_rng_below(&rng, (uint64_t)(MOST_RANGES - owners));
                cut(&rng, &l, owners, n, ranges);
                if (clime_ranges_check(&l, ranges, n, owners, &e)) fail_msg("%s", e.msg);
                check_server(&l, ranks, ranges, n);
            }
        clime_layout_free(&l);
    }
}

/* One owner of everything, in its own order: a piece for each run of joined tensors, and no more. */
static void one_owner_is_few_pieces(void **state) {
    struct clime_layout l;
    struct clime_piece *pieces;
    struct clime_error e;
    int n, runs = 0;
    (void)state;
    clime_layout_make(&configs[3], CLIME_BF16, &l);
    for (int i = 0; i < l.n_slices; i++)
        runs += i == 0 || l.slices[i].offset != l.slices[i - 1].offset + l.slices[i - 1].bytes;
    const struct clime_range all = {.hi = l.bytes};
    if (clime_pieces_make(&l, 0, 1, &all, 1, &pieces, &n, &e)) fail_msg("%s", e.msg);
    assert_int_equal(n, runs);
    free(pieces);
    clime_layout_free(&l);
}

static void what_is_not_the_whole_is_refused(void **state) {
    struct clime_layout l;
    struct clime_error e;
    (void)state;
    clime_layout_make(&configs[1], CLIME_BF16, &l);
    const struct clime_slice *q = &l.slices[l.layer[1].w[CLIME_W_QKV]];
    const int64_t a = q->offset, b = q->offset + q->bytes, most = INT64_MAX;
    const struct {
        struct clime_range ranges[3];
        int n;
        const char *says;
    } cases[] = {
        {{{0, a, 0, 0}, {b, l.bytes, 0, 1}}, 2, "model.layers.1.self_attn.q_proj.weight is left out"},
        {{{0, b, 0, 0}, {a, l.bytes, 0, 1}}, 2, "model.layers.1.self_attn.q_proj.weight is there twice"},
        {{{0, a, 0, 0}}, 1, "model.layers.1.self_attn.q_proj.weight is left out"},
        {{{0, 0, 0, 0}}, 0, "model.embed_tokens.weight is left out"},
        {{{0, a, 0, 0}, {a, l.bytes, 0, 2}}, 2, "ranges[1] is of handle 2, and there are 2"},
        {{{0, a, 0, 0}, {a, l.bytes, 0, -1}}, 2, "ranges[1] is of handle -1"},
        {{{0, a, 0, 0}, {a, a, 0, 0}, {a, l.bytes, 0, 0}}, 3, "ranges[1] cannot be"},
        {{{0, a, 2, 0}, {a, l.bytes, 0, 0}}, 2, "ranges[0] cannot be"},
        {{{0, a, -4, 0}, {a, l.bytes, 0, 0}}, 2, "ranges[0] cannot be"},
        {{{0, a, most, 0}, {a, l.bytes, 0, 0}}, 2, "ranges[0] cannot be"},
        {{{0, most, 0, 0}}, 1, "ranges[0] cannot be"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        assert_int_equal(clime_ranges_check(&l, cases[i].ranges, cases[i].n, 2, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, cases[i].says)) fail_msg("%s", e.msg);
    }
    clime_layout_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rank_takes_its_share),
                                       cmocka_unit_test(one_owner_is_few_pieces),
                                       cmocka_unit_test(what_is_not_the_whole_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
