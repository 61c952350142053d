/* The follower's life: meet the leader, load the share, replay its messages until the end. See follower.h.
 *
 * Owns its model, runner and end of the group. Invariant: it decides nothing; whatever goes wrong is said to the leader
 * and ends this process, and with it the server.
 */
#include "server/follower.h"

#include <stdio.h>
#include <string.h>

#include "common/group/start.h"
#include "common/log.h"
#include "common/threadpool.h"
#include "server/engine/engine.h"
#include "server/engine/followers.h"
#include "server/engine/memory_plan.h"
#include "server/engine/step.h"

struct follower {
    struct clime_model *model;
    struct clime_runner *runner;
    struct clime_group *group;
    struct clime_links *links;
    struct clime_buf wire; /* the last message */
};

struct clime_model_options clime_server_model_options(const struct clime_server_options *o, int rank) {
    int n = (int)o->tp_size, cores = clime_allowed_cores(), threads = (int)o->threads;
    if (n > 1 && !threads) threads = cores > n ? cores / n : 1; /* CPU ranks share the host's cores */
    return (struct clime_model_options){
        .device = clime_device_names[o->device],
        .dtype = clime_dtype_names[o->dtype],
        .dev = {.n_threads = threads, .isa = o->isa, .gpu = (int)o->gpu + rank, .deterministic = o->deterministic},
        .max_pos = (int)o->context_length,
        .no_weights = o->load_format != 0,
        .releasable = true,
        .rank = rank,
        .n_ranks = n};
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

static enum clime_err take_plan(struct follower *f, struct clime_follow_plan *p, struct clime_error *e) {
    enum clime_err rc = clime_group_receive(f->group, 0, "the plan", CLIME_FOLLOW_START_US, &f->wire, e);
    if (rc) return rc;
    if (f->wire.len != sizeof *p) return clime_fail(e, CLIME_ERR_INTERNAL, "the leader's plan has another size");
    memcpy(p, f->wire.data, sizeof *p);
    return CLIME_OK;
}

/* The leader's plan fits this device, too. */
static enum clime_err check_memory(const struct follower *f, const struct clime_server_options *o,
                                   const struct clime_follow_plan *p, struct clime_error *e) {
    const struct clime_memory_want want = {.fraction = o->mem_fraction,
                                           .max_total_tokens = (int64_t)p->sched.n_pages * CLIME_PAGE,
                                           .context = p->max_len,
                                           .own_weights = o->load_format == 0,
                                           .n_ranks = (int)o->tp_size};
    struct clime_server_memory plan;
    return clime_server_memory_make(f->model, &p->sched, &want, &plan, e);
}

static enum clime_err open_follower(struct follower *f, const struct clime_server_options *o,
                                    const struct clime_place *place, struct clime_error *e) {
    const struct clime_group_options g = {
        .place = *place, .listener = -1, .meet_limit_us = CLIME_FOLLOW_START_US, .limit_us = CLIME_FOLLOW_START_US};
    const struct clime_model_options m = clime_server_model_options(o, place->rank);
    struct clime_follow_plan p;
    enum clime_err rc = clime_group_meet(&g, &f->group, e);
    if (!rc) rc = clime_model_prepare(o->model_path, &m, &f->model, e);
    if (!rc) rc = take_plan(f, &p, e);
    if (!rc) rc = check_memory(f, o, &p, e);
    if (!rc) rc = clime_model_load(f->model, o->model_path, e);
    if (!rc) rc = clime_follow_link(f->group, f->model, &f->links, e);
    if (!rc) rc = clime_runner_open(f->model, &p.sched, p.max_len, NULL, 0, &f->runner, e);
    if (!rc) clime_group_set_limit(f->group, p.limit_us);
    return rc;
}

/* ---- obeying -------------------------------------------------------------------------------------------------------
 */

static enum clime_err misfit(const struct clime_follow *m, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INTERNAL, "the leader's message (word %d) does not fit", (int)m->word);
}

static enum clime_err run_rows(struct follower *f, const struct clime_follow *m, const char *rest, size_t n,
                               struct clime_error *e) {
    const struct clime_step_shape *s = &m->shape;
    bool sane = s->T > 0 && s->n_seq > 0 && s->stride > 0 && m->n_copies >= 0;
    size_t words = sane ? clime_step_words(s->T, s->n_seq, s->stride) * sizeof(int32_t) : 0;
    size_t copies = (size_t)m->n_copies * sizeof(struct clime_page_copy);
    if (!sane || n != words + copies) return misfit(m, e);
    bool fits = clime_runner_follow_rows(f->runner, s, (const int32_t *)(const void *)rest,
                                         (const struct clime_page_copy *)(const void *)(rest + words), m->n_copies);
    return fits ? CLIME_OK : misfit(m, e);
}

static enum clime_err run_logits(struct follower *f, const struct clime_follow *m, const char *rest, size_t n,
                                 struct clime_error *e) {
    bool fits = m->n_rows > 0 && n == (size_t)m->n_rows * sizeof(int32_t) &&
                clime_runner_follow_logits(f->runner, (const int32_t *)(const void *)rest, m->n_rows);
    return fits ? CLIME_OK : misfit(m, e);
}

/* A lack of memory is the leader's to tell; it ends nobody. */
static enum clime_err change_memory(struct follower *f, const struct clime_follow *m, struct clime_error *e) {
    struct clime_follow_answer a = {0};
    if (m->word == CLIME_FOLLOW_OWN) {
        clime_model_own(f->model, &a.error);
    } else if (m->word == CLIME_FOLLOW_GIVE_BACK) {
        if (m->tags & CLIME_MEMORY_KV) a.kv = clime_runner_release_kv(f->runner);
        if (m->tags & CLIME_MEMORY_WEIGHTS) a.weights = clime_model_release(f->model);
    } else {
        if (m->tags & CLIME_MEMORY_WEIGHTS) {
            a.weights = f->model->released ? clime_model_own_bytes(f->model) : 0;
            clime_model_take_back(f->model, &a.error);
        }
        if (!a.error.code && m->tags & CLIME_MEMORY_KV) clime_runner_take_back_kv(f->runner, &a.kv, &a.error);
    }
    return clime_group_send(f->group, 0, &a, sizeof a, e);
}

/* Until the end, or an error. What is queued on the device is awaited before the next message, for the host's arrays
 * are that message's. */
static enum clime_err obey(struct follower *f, struct clime_error *e) {
    for (;;) {
        struct clime_follow m;
        enum clime_err rc = clime_group_receive(f->group, 0, "the next step", -1, &f->wire, e);
        if (rc) return rc;
        if (f->wire.len < sizeof m) return clime_fail(e, CLIME_ERR_INTERNAL, "the leader's message is cut");
        memcpy(&m, f->wire.data, sizeof m);
        const char *rest = f->wire.data + sizeof m;
        size_t n = f->wire.len - sizeof m;
        switch (m.word) {
        case CLIME_FOLLOW_ROWS:
            rc = run_rows(f, &m, rest, n, e);
            break;
        case CLIME_FOLLOW_LOGITS:
            rc = run_logits(f, &m, rest, n, e);
            break;
        case CLIME_FOLLOW_WEIGHTS:
            rc = clime_model_take_share(f->model, e);
            break;
        case CLIME_FOLLOW_OWN:
        case CLIME_FOLLOW_GIVE_BACK:
        case CLIME_FOLLOW_TAKE_BACK:
            rc = change_memory(f, &m, e);
            break;
        case CLIME_FOLLOW_END:
            return CLIME_OK;
        default:
            rc = misfit(&m, e);
        }
        if (!rc) rc = f->model->ops->sync(f->model->dev, e);
        if (!rc) rc = clime_model_ranks_check(f->model, e);
        if (rc) return rc;
    }
}

int clime_server_follow(const struct clime_server_options *o, const struct clime_place *p) {
    struct follower f = {0};
    struct clime_error e = {0};
    clime_buf_init(&f.wire, CLIME_FOLLOW_BYTES);
    enum clime_err rc = clime_group_end_with_parent(&e);
    if (!rc) rc = open_follower(&f, o, p, &e);
    if (!rc) rc = obey(&f, &e);
    if (rc) LOG_ERROR("rank %d: %s", p->rank, e.msg);
    if (rc && f.group) clime_group_fail(f.group, &e);
    clime_links_close(f.links);
    clime_group_close(f.group);
    clime_runner_close(f.runner);
    clime_model_close(f.model);
    clime_buf_free(&f.wire);
    return rc ? 1 : 0;
}
