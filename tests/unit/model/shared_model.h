/* What a model over several ranks computes, for tests that compare it with one alone: prefill in one piece and in
 * several, decode; with the weights of its folder, with others that rank 0 hands out from host and device, and with
 * experts that no router prefers. */
#ifndef CLIME_TESTS_UNIT_MODEL_SHARED_MODEL_H
#define CLIME_TESTS_UNIT_MODEL_SHARED_MODEL_H

#include "model/model.h"
#include "tests/unit/model/paged.h"
#include "tests/unit/ranks.h"

enum { MAX_LEN = 150, MAX_ROWS = 200, MAX_LOGITS = 80 * 128 };

struct run { /* what a model computes, and how it is opened */
    const char *dir, *device, *dtype;
    int n_gpus;
    bool whole_experts;
    enum clime_links_way links; /* on GPUs */
    float *logits;              /* [MAX_LOGITS] rank 0's */
    int *n;
};

/* Logits of the R last rows of the batch. */
static void look(struct paged *p, struct run *r, int rank, int T, int R) {
    int32_t rows[8];
    int V = p->m->cfg.V;
    for (int i = 0; i < R; i++) rows[i] = T - R + i;
    clime_forward_logits(p->m, &p->w, rows, R);
    if (rank > 0) return;
    CHECK(*r->n + R * V <= MAX_LOGITS);
    p->m->ops->copy_out(p->m->dev, r->logits + *r->n, p->w.logits, (size_t)(R * V) * sizeof *r->logits);
    *r->n += R * V;
}

/* Three sequences: in one piece, in several with others beside them, then token by token. */
static void steps(struct run *r, struct clime_model *m, int rank) {
    int32_t ids[MAX_LEN];
    struct paged p;
    for (int i = 0; i < MAX_LEN; i++) ids[i] = (i * i + 3) % m->cfg.V;
    paged_open(&p, m, MAX_ROWS, MAX_LEN);
    look(&p, r, rank, paged_step(&p, &(struct piece){0, 0, 100, ids}, 1), 3);
    look(&p, r, rank, paged_step(&p, (struct piece[]){{1, 0, 70, ids + 2}, {2, 0, 1, ids + 9}}, 2), 2);
    look(&p, r, rank,
         paged_step(&p, (struct piece[]){{0, 100, 1, ids + 100}, {1, 70, 60, ids + 72}, {2, 1, 5, ids + 10}}, 3), 6);
    for (int k = 0; k < 2; k++)
        look(&p, r, rank,
             paged_step(&p,
                        (struct piece[]){
                            {0, 101 + k, 1, ids + 101 + k}, {1, 130 + k, 1, ids + k}, {2, 6 + k, 1, ids + 15 + k}},
                        3),
             3);
    paged_close(&p);
}

/* Routers to which all experts are the same: every row chooses those with the lowest numbers. */
static void no_preference(const struct clime_model *m, char *flat) {
    for (int i = 0; i < m->layout.n_slices; i++) {
        const struct clime_slice *s = &m->layout.slices[i];
        if (strstr(s->name, ".mlp.gate.")) memset(flat + s->offset, 0, (size_t)s->bytes);
    }
}

/* Weights that are not the folder's. */
static void new_weights(struct clime_model *m, int rank, bool host, bool even) {
    struct clime_error e;
    void *flat = xmalloc(clime_model_bytes(m));
    clime_weights_init(&m->layout, flat, 0.2f, host ? 5 : 6);
    if (!even) no_preference(m, flat);
    void *from = flat;
    if (!host && rank == 0) {
        CHECK(m->ops->alloc(m->dev, clime_model_bytes(m), "new weights", &from, &e) == CLIME_OK);
        m->ops->copy_in(m->dev, from, flat, clime_model_bytes(m));
    }
    enum clime_err rc = rank             ? clime_model_take_share(m, &e)
                        : m->ranks.n > 1 ? clime_model_hand_out(m, from, host, &e)
                        : host           ? clime_model_set(m, from, &e)
                                         : clime_model_copy(m, from, &e);
    if (!rc) rc = m->ops->sync(m->dev, &e);
    if (rc) fprintf(stderr, "rank %d: %s\n", rank, e.msg);
    CHECK(!rc);
    if (from != flat) m->ops->free(m->dev, from);
    free(flat);
}

static enum clime_err no_memory(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                struct clime_error *e) {
    (void)d;
    (void)out;
    return clime_fail(e, CLIME_ERR_LIMIT, "no memory for %zu bytes of %s", bytes, what);
}

/* Who hands out has told the others already, and may not lack memory any more, also on a device of its own. */
static void full_device(struct clime_model *m, int rank) {
    const struct clime_ops *was = m->ops;
    struct clime_ops full = *was;
    full.own_memory = true;
    full.alloc = no_memory;
    m->ops = &full;
    new_weights(m, rank, true, true);
    m->ops = was;
}

/* A rank's part, from its opening to its end; 0 = well. */
static int shared_model(const struct clime_place *place, void *arg) {
    struct run *r = arg;
    struct clime_group *group = NULL;
    struct clime_links *links = NULL;
    struct clime_model *m;
    struct clime_error e;
    char *dir = xasprintf("%s/%s", getenv("CLIME_GOLDEN") ? getenv("CLIME_GOLDEN") : "tests/golden", r->dir);
    const struct clime_group_options g = ranks_options(place, RANKS_LONG_US);
    const struct clime_model_options o = {
        .device = r->device,
        .dtype = r->dtype,
        .dev = {.n_threads = 1, .gpu = place->local_rank % r->n_gpus, .deterministic = true, .links = r->links},
        .max_pos = MAX_LEN,
        .rank = place->rank,
        .n_ranks = place->world,
        .whole_experts = r->whole_experts};
    enum clime_err rc = place->world > 1 ? clime_group_meet(&g, &group, &e) : CLIME_OK;
    if (!rc) rc = clime_model_open(dir, &o, &m, &e);
    if (!rc && group && !(rc = clime_links_open(m->ops, m->dev, group, &links, &e))) clime_model_link(m, links);
    if (rc) {
        fprintf(stderr, "rank %d: %s\n", place->rank, e.msg);
        return 1;
    }
    steps(r, m, place->rank);
    for (int host = 0; host < 2; host++) {
        new_weights(m, place->rank, host, true);
        steps(r, m, place->rank);
    }
    if (m->cfg.router.E) {
        new_weights(m, place->rank, true, false);
        steps(r, m, place->rank);
    }
    full_device(m, place->rank);
    rc = clime_model_ranks_check(m, &e);
    if (!rc && group) rc = clime_group_agree(group, "the end", &e); /* who ends before another is done is lost to it */
    if (rc) fprintf(stderr, "rank %d: %s\n", place->rank, e.msg);
    clime_links_close(links); /* before the device that they are of */
    clime_group_close(group);
    clime_model_close(m);
    free(dir);
    return rc != CLIME_OK;
}

#endif
