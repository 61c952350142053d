/* Servers that copy the weights of a sharded learner out of its ranks' memory: models of 1 to 4 ranks, with rows of
 * experts and with whole ones, each rank of which must have what the learner's own copy of the whole has. */
#ifndef CLIME_TESTS_UNIT_TRAINER_COPIES_TEST_H
#define CLIME_TESTS_UNIT_TRAINER_COPIES_TEST_H

#include "tests/unit/trainer/learner_test.h"

static void check_share(const struct clime_learner *l, const struct clime_model *m) {
    for (int i = 0; i < m->shard.n_parts; i++) {
        const struct clime_shard_part *p = &m->shard.parts[i];
        if (memcmp(clime_model_at(m, p->local), (char *)l->model->ring->whole + p->global, (size_t)p->bytes) != 0)
            fail_msg("%s on rank %d of %d is not what %d ranks trained it to", m->layout.slices[p->slice].name,
                     m->ranks.rank, m->ranks.n, l->opts.n_ranks);
    }
}

/* First into no memory, then into what is there; what is let go changes nothing. Returns the rank's sum. */
static uint64_t take_copy(const struct clime_learner *l, struct clime_model *m, const struct clime_weight_parts *p) {
    struct clime_error e;
    uint64_t sum, again;
    if (clime_model_stage(m, p, &sum, &e)) fail_msg("%s", e.msg);
    clime_model_use_share(m, false);
    assert_null(m->flat);
    for (int i = 0; i < 2; i++) {
        if (clime_model_stage(m, p, &again, &e)) fail_msg("%s", e.msg);
        const void *flat = m->flat;
        clime_model_use_share(m, true);
        assert_true(!m->foreign && again == sum && (i == 0 || flat == m->flat));
        check_share(l, m);
        memset(m->flat, 1, clime_model_own_bytes(m));
    }
    return sum;
}

/* Returns false where so many ranks cannot share the model. */
static bool check_server(const struct clime_learner *l, const struct clime_weight_parts *p, int n, bool whole_experts) {
    struct clime_error e;
    uint64_t sum = 0;
    for (int r = 0; r < n; r++) {
        const struct clime_model_options o = {.device = "cpu",
                                              .dtype = l->opts.model.dtype,
                                              .dev = {.n_threads = 1},
                                              .no_weights = true,
                                              .whole_experts = whole_experts,
                                              .rank = r,
                                              .n_ranks = n};
        struct clime_model *m;
        if (clime_model_prepare(l->opts.hf_checkpoint, &o, &m, &e)) return false;
        if (clime_model_load(m, l->opts.hf_checkpoint, &e)) fail_msg("%s", e.msg);
        assert_int_equal(m->handover, l->model->handover);
        sum += take_copy(l, m, p);
        clime_model_close(m);
    }
    assert_int_equal(clime_weight_parts_check(p, sum, &e), CLIME_OK);
    assert_int_equal(clime_weight_parts_check(p, sum + 1, &e), CLIME_ERR_INPUT);
    return true;
}

static void check_copies(struct clime_learner *l) {
    struct clime_weight_parts p;
    struct clime_error e;
    int n_servers = 0;
    if (clime_learner_whole(l, &e) || clime_learner_parts(l, &p, &e)) fail_msg("%s", e.msg);
    assert_int_equal(p.n_handles, l->opts.n_ranks);
    for (int n = 1; n <= 4; n++)
        for (int whole = 0; whole <= (l->model->cfg.router.E > 0); whole++) n_servers += check_server(l, &p, n, whole);
    assert_true(n_servers >= (l->model->cfg.H % 2 ? 1 : 3)); /* one alone, two and four */
}

#endif
