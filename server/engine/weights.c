/* Weight updates, and freeing and allocating the memory of weights and KV, between two steps.
 *
 * As in control.c, the functions of engine.h run on the caller's thread and wait; the static `do_` functions run on the
 * engine thread. Invariant: weights change as a whole, for every sequence and on all ranks; while weights or KV memory
 * are missing, no step runs and new requests fail (control.c).
 */
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/engine/engine_int.h"

bool clime_engine_has_weights(struct clime_engine *g) {
    return atomic_load(&g->weights) == CLIME_WEIGHTS_READY;
}

unsigned clime_engine_lent(struct clime_engine *g) {
    return (atomic_load(&g->no_kv) ? CLIME_MEMORY_KV : 0u) |
           (atomic_load(&g->lent_weights) ? CLIME_MEMORY_WEIGHTS : 0u);
}

/* ---- weights ----------------------------------------------------------------------------------------------- */

void clime_engine_set_label(struct clime_engine *g, const char *name, uint64_t number) {
    size_t n = strlen(name) + 1;
    struct clime_weight_label *l = xmalloc(sizeof *l + n);
    *l = (struct clime_weight_label){.number = number, .older = atomic_load(&g->version)};
    l->name = memcpy(l + 1, name, n);
    atomic_store(&g->version, l);
}

static void do_relabel(struct clime_engine *g, struct clime_command *c) {
    clime_engine_set_label(g, c->label, g->sched.version);
}

void clime_engine_relabel(struct clime_engine *g, const char *label) {
    struct clime_command c = {.run = do_relabel, .label = label};
    clime_engine_run(g, &c);
}

/* Each rank copies its share into its own memory, except from an owner with one share for each rank: then it maps
 * that. */
static enum clime_err share_weights(struct clime_engine *g, const struct clime_weight_source *from,
                                    struct clime_error *e) {
    const struct clime_model *m = g->model;
    void *theirs = NULL;
    bool same_unit;
    enum clime_err err = CLIME_OK;
    if (from->kind == CLIME_FROM_OWNER && from->n_handles > 1)
        return clime_followers_map(g->opts.followers, from->handles, e);
    if (from->kind == CLIME_FROM_OWNER)
        err = m->ops->share_open(m->dev, from->handles[0], clime_model_bytes(m), &same_unit, &theirs, e);
    if (!err)
        err = clime_followers_update(g->opts.followers, theirs ? theirs : from->flat, from->kind == CLIME_FROM_HOST, e);
    if (theirs && !err) err = m->ops->sync(m->dev, e); /* queued copies read it */
    if (theirs) m->ops->share_close(m->dev, theirs);
    return err;
}

static enum clime_err take_parts(struct clime_engine *g, const struct clime_weight_parts *p, struct clime_error *e) {
    uint64_t sum;
    if (g->opts.followers) return clime_followers_stage(g->opts.followers, p, e);
    enum clime_err err = clime_model_stage(g->model, p, &sum, e);
    if (!err) err = clime_weight_parts_check(p, sum, e);
    clime_model_use_share(g->model, !err);
    return err;
}

static enum clime_err take_weights(struct clime_engine *g, const struct clime_weight_source *from,
                                   struct clime_error *e) {
    struct clime_model *m = g->model;
    if (from->kind == CLIME_FROM_PARTS) return take_parts(g, &from->parts, e);
    if (g->opts.followers) return share_weights(g, from, e);
    switch (from->kind) {
    case CLIME_FROM_HOST:
        return clime_model_set(m, from->flat, e);
    case CLIME_FROM_DEVICE:
        if (!from->slices) return clime_model_copy(m, from->flat, e);
        clime_model_copy_slices(m, from->flat, from->slices);
        return CLIME_OK;
    default:
        return clime_model_map(m, from->handles[0], e);
    }
}

/* A partial update needs the other weights present and writable. */
static enum clime_err refuse_part(struct clime_engine *g, const struct clime_weight_source *from,
                                  struct clime_error *e) {
    if (!from->slices) return CLIME_OK;
    if (g->opts.followers)
        return clime_fail(e, CLIME_ERR_INPUT, "weights over several devices change all at once: send every tensor");
    if (atomic_load(&g->weights) != CLIME_WEIGHTS_READY || g->has_owner)
        return clime_fail(e, CLIME_ERR_INPUT, "a part of the tensors came, and the others %s: send every tensor",
                          g->has_owner ? "are another process's" : "are not there");
    return CLIME_OK;
}

static enum clime_err refuse_dead(struct clime_engine *g, struct clime_error *e) {
    return atomic_load(&g->dead) ? clime_fail(e, CLIME_ERR_DEVICE, "the engine is dead: the device failed") : CLIME_OK;
}

/* True when an operation between two steps has failed for good on some rank. */
static bool lost_ranks(struct clime_engine *g) {
    struct clime_error e;
    enum clime_err err = clime_model_ranks_check(g->model, &e);
    return clime_engine_is_dead(g, err, &e);
}

static void do_update(struct clime_engine *g, struct clime_command *c) {
    if ((c->err = refuse_dead(g, c->error)) || (c->err = refuse_part(g, c->from, c->error))) return;
    c->n_inflight = g->sched.n_running + g->sched.n_waiting;
    c->err = take_weights(g, c->from, c->error);
    if (lost_ranks(g) || c->err) return;
    g->has_owner = c->from->kind == CLIME_FROM_OWNER;
    c->err = g->model->ops->sync(g->model->dev, c->error);
    if (clime_engine_is_dead(g, c->err, c->error)) return;
    if (c->inflight == CLIME_INFLIGHT_ABORT) clime_engine_end_all(g, clime_aborted_running);
    clime_sched_new_version(&g->sched, c->inflight == CLIME_INFLIGHT_KEEP);
    clime_engine_set_label(g, c->label, g->sched.version);
    atomic_store(&g->writing_until_us, 0);
    atomic_store(&g->weights, CLIME_WEIGHTS_READY);
    atomic_store(&g->lent_weights, false);
}

enum clime_err clime_engine_update(struct clime_engine *g, const struct clime_weight_source *from, const char *label,
                                   enum clime_inflight inflight, int *n_inflight, struct clime_error *e) {
    struct clime_command c = {.run = do_update, .from = from, .label = label, .inflight = inflight, .error = e};
    int64_t t0 = clime_now_us();
    clime_engine_run(g, &c);
    if (n_inflight) *n_inflight = c.n_inflight;
    if (!c.err)
        LOG_INFO("weights are version \"%s\": %d sequences in flight, %.1f ms", label, c.n_inflight,
                 (double)(clime_now_us() - t0) / 1000);
    return c.err;
}

static void do_writing(struct clime_engine *g, struct clime_command *c) {
    if ((c->err = refuse_dead(g, c->error))) return;
    if (!g->has_owner) {
        c->err = clime_fail(c->error, CLIME_ERR_INPUT, "the weights are this server's own; nobody else writes them");
        return;
    }
    atomic_store(&g->writing_until_us, clime_now_us() + c->limit_us);
    atomic_store(&g->weights, CLIME_WEIGHTS_WRITING);
}

enum clime_err clime_engine_writing(struct clime_engine *g, int64_t limit_us, struct clime_error *e) {
    struct clime_command c = {.run = do_writing, .limit_us = limit_us, .error = e};
    clime_engine_run(g, &c);
    return c.err;
}

static void do_read_weights(struct clime_engine *g, struct clime_command *c) {
    if ((c->err = refuse_dead(g, c->error))) return;
    if (atomic_load(&g->weights) != CLIME_WEIGHTS_READY) c->err = clime_engine_complete(g, c->error);
    if (!c->err && g->opts.followers)
        c->err = clime_followers_read(g->opts.followers, (int64_t)c->weights_at, (int64_t)c->n_bytes, c->h_weights,
                                      c->error);
    if (c->err) {
        lost_ranks(g);
        return;
    }
    if (!g->opts.followers)
        g->model->ops->copy_out(g->model->dev, c->h_weights, (const char *)g->model->flat + c->weights_at, c->n_bytes);
    c->err = g->model->ops->sync(g->model->dev, c->error); /* a failed device copies nothing */
    clime_engine_is_dead(g, c->err, c->error);
}

enum clime_err clime_engine_read_weights(struct clime_engine *g, size_t at, size_t n_bytes, void *h_out,
                                         struct clime_error *e) {
    struct clime_command c = {
        .run = do_read_weights, .weights_at = at, .n_bytes = n_bytes, .h_weights = h_out, .error = e};
    clime_engine_run(g, &c);
    return c.err;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static size_t free_memory(struct clime_engine *g) {
    size_t free_bytes, total;
    g->model->ops->memory(g->model->dev, &free_bytes, &total);
    return free_bytes;
}

static void do_give_back(struct clime_engine *g, struct clime_command *c) {
    struct clime_memory_change *out = c->change;
    if ((c->err = refuse_dead(g, c->error))) return;
    if (g->sched.n_running + g->sched.n_waiting > 0) {
        c->err = clime_fail(c->error, CLIME_ERR_BUSY, "%d requests are in flight: end or abort them first",
                            g->sched.n_running + g->sched.n_waiting);
        return;
    }
    out->free_before = free_memory(g);
    if (c->tags & CLIME_MEMORY_KV) {
        clime_sched_flush(&g->sched);
        out->kv = clime_runner_release_kv(g->runner);
        atomic_store(&g->no_kv, true);
    }
    if (c->tags & CLIME_MEMORY_WEIGHTS) {
        out->weights = clime_model_release(g->model);
        if (out->weights > 0) atomic_store(&g->weights, CLIME_WEIGHTS_ABSENT);
        if (out->weights > 0) atomic_store(&g->lent_weights, true);
    }
    c->err = g->model->ops->sync(g->model->dev, c->error);
    if (!c->err && g->opts.followers)
        c->err = clime_followers_memory(g->opts.followers, CLIME_FOLLOW_GIVE_BACK, c->tags, &out->kv, &out->weights,
                                        c->error);
    out->free_after = free_memory(g);
    clime_engine_is_dead(g, c->err, c->error);
}

static void do_take_back(struct clime_engine *g, struct clime_command *c) {
    struct clime_memory_change *out = c->change;
    if ((c->err = refuse_dead(g, c->error))) return;
    out->free_before = free_memory(g);
    if (c->tags & CLIME_MEMORY_WEIGHTS) {
        out->weights = g->model->released ? clime_model_own_bytes(g->model) : 0;
        if ((c->err = clime_model_take_back(g->model, c->error))) return;
    }
    if ((c->tags & CLIME_MEMORY_KV) && atomic_load(&g->no_kv) &&
        (c->err = clime_runner_take_back_kv(g->runner, &out->kv, c->error)))
        return;
    if (g->opts.followers)
        c->err = clime_followers_memory(g->opts.followers, CLIME_FOLLOW_TAKE_BACK, c->tags, &out->kv, &out->weights,
                                        c->error);
    if (lost_ranks(g) || c->err) return;
    if (c->tags & CLIME_MEMORY_KV) atomic_store(&g->no_kv, false);
    if (c->tags & CLIME_MEMORY_WEIGHTS) atomic_store(&g->lent_weights, false);
    out->free_after = free_memory(g);
}

static enum clime_err change_memory(struct clime_engine *g, void (*run)(struct clime_engine *, struct clime_command *),
                                    unsigned tags, struct clime_memory_change *out, struct clime_error *e) {
    struct clime_command c = {.run = run, .tags = tags, .change = out, .error = e};
    *out = (struct clime_memory_change){0};
    clime_engine_run(g, &c);
    return c.err;
}

enum clime_err clime_engine_give_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e) {
    return change_memory(g, do_give_back, tags, out, e);
}

enum clime_err clime_engine_take_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e) {
    return change_memory(g, do_take_back, tags, out, e);
}
