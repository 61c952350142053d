/* A follower process: connects to the leader, loads its share, replays messages until the end (server/engine/obey.c).
 * See follower.h.
 *
 * Owns its model, runner and end of the group. Invariant: it decides nothing; any failure is reported to the leader and
 * ends this process, and with it the server.
 */
#include "server/follower.h"

#include <stdio.h>
#include <string.h>

#include "common/group/start.h"
#include "common/log.h"
#include "common/thread/threadpool.h"
#include "server/engine/engine.h"
#include "server/engine/followers.h"
#include "server/engine/memory_plan.h"
#include "server/engine/obey.h"
#include "server/engine/step.h"

struct follower {
    struct clime_model *model;
    struct clime_runner *runner;
    struct clime_group *group;
    struct clime_links *links;
};

struct clime_model_options clime_server_model_options(const struct clime_server_options *o, int rank) {
    int n = (int)o->tp_size, cores = clime_allowed_cores(), threads = (int)o->threads;
    if (n > 1 && !threads) threads = cores > n ? cores / n : 1; /* CPU ranks share the host's cores */
    return (struct clime_model_options){.device = clime_device_names[o->device],
                                        .dtype = clime_dtype_names[o->dtype],
                                        .dev = {.n_threads = threads,
                                                .isa = o->isa,
                                                .gpu = o->gpu + clime_place_device(o->gpus_left_out, rank),
                                                .deterministic = o->deterministic},
                                        .max_pos = (int)o->context_length,
                                        .no_weights = o->load_format != 0,
                                        .releasable = true,
                                        .rank = rank,
                                        .n_ranks = n,
                                        .whole_experts = o->ep_size > 1};
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

static enum clime_err take_plan(struct follower *f, struct clime_follow_plan *p, struct clime_error *e) {
    struct clime_buf b;
    clime_buf_init(&b, sizeof *p);
    enum clime_err rc = clime_group_receive(f->group, 0, "the plan", CLIME_FOLLOW_START_US, &b, e);
    if (!rc && b.len != sizeof *p) rc = clime_fail(e, CLIME_ERR_INTERNAL, "the leader's plan has another size");
    if (!rc) memcpy(p, b.data, sizeof *p);
    clime_buf_free(&b);
    return rc;
}

/* Checks that the leader's plan fits this device too. */
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
    if (!rc) rc = clime_runner_open(f->model, &p.sched, p.max_len, p.graph_bs, p.n_graph_bs, &f->runner, e);
    if (!rc) clime_group_set_limit(f->group, p.limit_us, "--dist-timeout");
    return rc;
}

int clime_server_follow(const struct clime_server_options *o, const struct clime_place *p) {
    struct follower f = {0};
    struct clime_error e = {0};
    enum clime_err rc = clime_group_end_with_parent(&e);
    if (!rc) rc = open_follower(&f, o, p, &e);
    if (!rc) rc = clime_follow_obey(f.model, f.runner, f.group, &e);
    if (rc) LOG_ERROR("rank %d: %s", p->rank, e.msg);
    if (rc && f.group) clime_group_fail(f.group, &e);
    clime_links_close(f.links);
    clime_group_close(f.group);
    clime_runner_close(f.runner);
    clime_model_close(f.model);
    return rc ? 1 : 0;
}
