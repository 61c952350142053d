/* The leader's side of tensor-parallel serving. See followers.h. Owns the group, the children and the links.
 *
 * Invariant: every follower gets the same messages, in the order in which this rank does the same work, so collectives
 * match. After a failure no message is sent: the remaining ranks wait in a collective and find the group lost.
 */
#include "server/engine/followers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/group/start.h"
#include "common/log.h"
#include "model/model.h"

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

enum clime_err clime_followers_start(int world, uint64_t gpus_left_out, char *const *argv, int64_t limit_us,
                                     struct clime_followers **out, struct clime_error *e) {
    struct clime_group_options o = {.listener = -1,
                                    .meet_limit_us = CLIME_FOLLOW_START_US,
                                    .limit_us = CLIME_FOLLOW_START_US,
                                    .left_out = gpus_left_out};
    int n = 0;
    while (argv[n]) n++;
    const char **args = xcalloc((size_t)n + 1, sizeof *args);
    for (int i = 1; i < n; i++) args[i] = argv[i];
    args[0] = "/proc/self/exe";
    enum clime_err rc = clime_group_start(world, args, NULL, &o, e);
    free(args);
    if (rc) return rc;
    struct clime_followers *f = xcalloc(1, sizeof *f);
    *f = (struct clime_followers){.children = o.children, .world = world, .limit_us = limit_us};
    clime_buf_init(&f->wire, CLIME_FOLLOW_BYTES);
    rc = clime_group_meet(&o, &f->group, e);
    if (rc)
        clime_followers_close(f);
    else
        *out = f;
    return rc;
}

static enum clime_err tell(struct clime_followers *f, const void *data, size_t n, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int r = 1; r < f->world && !rc; r++) rc = clime_group_send(f->group, r, data, n, e);
    return rc;
}

enum clime_err clime_followers_plan(struct clime_followers *f, const struct clime_sched_options *sched, int max_len,
                                    const int *graph_bs, int n_graph_bs, struct clime_error *e) {
    struct clime_follow_plan p = {
        .sched = *sched, .max_len = max_len, .n_graph_bs = n_graph_bs, .limit_us = f->limit_us};
    CHECK(n_graph_bs <= CLIME_GRAPH_MAX_SIZES);
    for (int i = 0; i < n_graph_bs; i++) p.graph_bs[i] = graph_bs[i];
    size_t words = clime_step_words(sched->chunk + sched->max_running, sched->max_running, clime_pages_for(max_len));
    if (words > CLIME_FOLLOW_WORDS)
        return clime_fail(e, CLIME_ERR_LIMIT,
                          "a step of %d sequences of %d tokens is told to the other devices in %zu MiB, more than %zu: "
                          "a smaller --max-running-requests or --context-length is needed",
                          sched->max_running, max_len, words * sizeof(int32_t) >> 20,
                          CLIME_FOLLOW_WORDS * sizeof(int32_t) >> 20);
    return tell(f, &p, sizeof p, e);
}

enum clime_err clime_follow_link(struct clime_group *g, struct clime_model *m, struct clime_links **out,
                                 struct clime_error *e) {
    struct clime_facts mine = {0};
    clime_model_facts(m, &mine);
    enum clime_err rc = clime_group_compare(g, &mine, e);
    clime_facts_free(&mine);
    if (!rc) rc = clime_links_open(m->ops, m->dev, g, out, e);
    if (!rc) clime_model_link(m, *out);
    return rc;
}

enum clime_err clime_followers_link(struct clime_followers *f, struct clime_model *m, struct clime_error *e) {
    enum clime_err rc = clime_follow_link(f->group, m, &f->links, e);
    if (rc) return rc;
    clime_group_set_limit(f->group, f->limit_us, "--dist-timeout");
    f->model = m;
    f->shards = xcalloc((size_t)f->world, sizeof *f->shards);
    for (int r = 0; r < f->world && !rc; r++) rc = clime_layout_shard(&m->layout, r, f->world, &f->shards[r], e);
    if (rc) return rc;
    LOG_INFO("%d devices share the model%s: %.1f MiB of weights on this one, of %.1f", f->world,
             m->ranks.whole_experts ? ", experts whole" : "", (double)clime_model_own_bytes(m) / (1 << 20),
             (double)clime_model_bytes(m) / (1 << 20));
    return CLIME_OK;
}

void clime_followers_close(struct clime_followers *f) {
    const struct clime_follow end = {.word = CLIME_FOLLOW_END};
    struct clime_error unused;
    if (!f) return;
    if (f->links && !clime_group_check(f->group, &unused)) tell(f, &end, sizeof end, &unused);
    clime_links_close(f->links);
    clime_group_close(f->group);
    clime_group_stop(f->children);
    for (int r = 0; f->shards && r < f->world; r++) clime_shard_free(&f->shards[r]);
    free(f->shards);
    clime_buf_free(&f->wire);
    free(f);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------
 */

static void tell_step(struct clime_followers *f) {
    struct clime_error e;
    if (clime_model_ranks_check(f->model, NULL)) return;
    CHECK(!f->wire.full);
    if (tell(f, f->wire.data, f->wire.len, &e)) clime_model_ranks_fail(f->model, &e);
}

void clime_followers_rows(struct clime_followers *f, const struct clime_step_shape *shape, const int32_t *words,
                          const struct clime_page_copy *copies, int n_copies) {
    const struct clime_follow m = {.word = CLIME_FOLLOW_ROWS, .shape = *shape, .n_copies = n_copies};
    size_t n_words = clime_step_words(shape->T, shape->n_seq, shape->stride);
    clime_buf_clear(&f->wire);
    clime_buf_add(&f->wire, &m, sizeof m);
    clime_buf_add(&f->wire, words, n_words * sizeof *words);
    clime_buf_add(&f->wire, copies, (size_t)n_copies * sizeof *copies);
    tell_step(f);
}

void clime_followers_logits(struct clime_followers *f, const int32_t *rows, int n) {
    const struct clime_follow m = {.word = CLIME_FOLLOW_LOGITS, .n_rows = n};
    clime_buf_clear(&f->wire);
    clime_buf_add(&f->wire, &m, sizeof m);
    clime_buf_add(&f->wire, rows, (size_t)n * sizeof *rows);
    tell_step(f);
}

enum clime_err clime_followers_check(struct clime_followers *f, struct clime_error *e) {
    enum clime_err rc = clime_model_ranks_check(f->model, e);
    return rc ? rc : clime_group_check(f->group, e);
}

/* ---- between steps -------------------------------------------------------------------------------------------------
 */

static enum clime_err tell_all(struct clime_followers *f, const void *message, size_t n, struct clime_error *e) {
    enum clime_err err = clime_model_ranks_check(f->model, e);
    if (!err && (err = tell(f, message, n, e))) clime_model_ranks_fail(f->model, e);
    return err;
}

/* Reads all followers' replies and adds them to *all. Returns the first error, after reading every reply. */
static enum clime_err hear_all(struct clime_followers *f, const char *what, struct clime_follow_answer *all,
                               struct clime_error *e) {
    struct clime_follow_answer a;
    struct clime_error lost = {0};
    enum clime_err rc = CLIME_OK, err = CLIME_OK;
    for (int r = 1; r < f->world && !err; r++) {
        err = clime_group_receive(f->group, r, what, f->limit_us, &f->wire, &lost);
        if (err) break;
        CHECK(f->wire.len == sizeof a);
        memcpy(&a, f->wire.data, sizeof a);
        all->kv += a.kv;
        all->weights += a.weights;
        all->sum += a.sum;
        if (a.error.code && !rc) rc = clime_fail(e, a.error.code, "%s: %s", clime_group_name(f->group, r), a.error.msg);
    }
    if (!err) return rc;
    clime_model_ranks_fail(f->model, &lost);
    if (e) *e = lost;
    return err;
}

static enum clime_err ask(struct clime_followers *f, const void *message, size_t n, struct clime_follow_answer *all,
                          struct clime_error *e) {
    enum clime_err err = tell_all(f, message, n, e);
    return err ? err : hear_all(f, "memory taken, given back or mapped", all, e);
}

enum clime_err clime_followers_memory(struct clime_followers *f, enum clime_follow_word word, unsigned tags, size_t *kv,
                                      size_t *weights, struct clime_error *e) {
    const struct clime_follow m = {.word = word, .tags = tags};
    struct clime_follow_answer all = {.kv = *kv, .weights = *weights};
    enum clime_err rc = ask(f, &m, sizeof m, &all, e);
    *kv = all.kv;
    *weights = all.weights;
    return rc;
}

/* Places rank's share of n bytes in out. Parts replicated on the rank before are there already and are compared. */
static enum clime_err place(const struct clime_followers *f, int rank, int64_t offset, int64_t n, char *out,
                            struct clime_error *e) {
    const struct clime_shard *s = &f->shards[rank], *before = &f->shards[rank - 1];
    size_t at = 0;
    struct clime_shard_part p;
    for (int i = clime_shard_first(s, offset); clime_shard_cut(s, i, offset, n, &p); i++) {
        const char *theirs = f->wire.data + at;
        char *to = out + (p.global - offset);
        size_t bytes = (size_t)p.bytes;
        at += bytes;
        if (at > f->wire.len) break;
        bool both = before->parts[i].bytes && before->parts[i].global == s->parts[i].global;
        if (both && memcmp(to, theirs, bytes) != 0)
            return clime_fail(e, CLIME_ERR_INTERNAL, "%s has other values of %s than the ranks before it",
                              clime_group_name(f->group, rank), f->model->layout.slices[p.slice].name);
        memcpy(to, theirs, bytes);
    }
    if (at == f->wire.len) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INTERNAL, "%s sends another number of weights than it has",
                      clime_group_name(f->group, rank));
}

enum clime_err clime_followers_read(struct clime_followers *f, int64_t offset, int64_t n, void *h_out,
                                    struct clime_error *e) {
    const struct clime_follow m = {.word = CLIME_FOLLOW_READ, .from = offset, .n = n};
    struct clime_error lost = {0};
    struct clime_shard_part p;
    enum clime_err rc = CLIME_OK, err = clime_model_ranks_check(f->model, &lost);
    if (!err) err = tell(f, &m, sizeof m, &lost);
    const struct clime_shard *own = &f->model->shard; /* current placement */
    for (int i = clime_shard_first(own, offset); !err && clime_shard_cut(own, i, offset, n, &p); i++)
        f->model->ops->copy_out(f->model->dev, (char *)h_out + (p.global - offset), clime_model_at(f->model, p.local),
                                (size_t)p.bytes);
    for (int r = 1; r < f->world && !err; r++) {
        err = clime_group_receive(f->group, r, "reading weights", f->limit_us, &f->wire, &lost);
        if (!err && !rc) rc = place(f, r, offset, n, h_out, e);
    }
    if (!err) return rc;
    clime_model_ranks_fail(f->model, &lost);
    if (e) *e = lost;
    return err;
}

enum clime_err clime_followers_update(struct clime_followers *f, const void *flat, bool host, struct clime_error *e) {
    const struct clime_follow own = {.word = CLIME_FOLLOW_OWN}, m = {.word = CLIME_FOLLOW_WEIGHTS};
    struct clime_follow_answer unused = {0};
    enum clime_err rc = clime_model_own(f->model, e);
    if (!rc) rc = ask(f, &own, sizeof own, &unused, e);
    if (!rc) rc = tell_all(f, &m, sizeof m, e);
    return rc ? rc : clime_model_hand_out(f->model, flat, host, e);
}

/* After mapping or copying with result rc: all ranks use it, or none does. */
static enum clime_err settle(struct clime_followers *f, enum clime_err rc, struct clime_error *e) {
    const struct clime_follow end = {.word = rc ? CLIME_FOLLOW_LET_GO : CLIME_FOLLOW_USE};
    struct clime_error lost;
    clime_model_use_share(f->model, !rc);
    if (!rc) return tell_all(f, &end, sizeof end, e);
    if (!clime_model_ranks_check(f->model, NULL)) tell_all(f, &end, sizeof end, &lost);
    return rc;
}

enum clime_err clime_followers_map(struct clime_followers *f, const uint8_t handles[][CLIME_SHARE_BYTES],
                                   struct clime_error *e) {
    const struct clime_follow open = {.word = CLIME_FOLLOW_OPEN};
    struct clime_follow_answer unused = {0};
    struct clime_buf message;
    enum clime_err rc = clime_model_open_share(f->model, handles[0], e);
    if (rc) return rc;
    clime_buf_init(&message, CLIME_FOLLOW_BYTES);
    clime_buf_add(&message, &open, sizeof open);
    clime_buf_add(&message, handles, (size_t)f->world * sizeof *handles);
    rc = ask(f, message.data, message.len, &unused, e);
    clime_buf_free(&message);
    return settle(f, rc, e);
}

enum clime_err clime_followers_stage(struct clime_followers *f, const struct clime_weight_parts *p,
                                     struct clime_error *e) {
    const struct clime_follow stage = {.word = CLIME_FOLLOW_STAGE, .n_handles = p->n_handles, .n_ranges = p->n_ranges};
    struct clime_follow_answer all = {0};
    struct clime_error own;
    struct clime_buf message;
    uint64_t sum = 0;
    clime_buf_init(&message, CLIME_FOLLOW_BYTES);
    clime_buf_add(&message, &stage, sizeof stage);
    clime_buf_add(&message, p->handles, (size_t)p->n_handles * sizeof *p->handles);
    clime_buf_add(&message, p->ranges, (size_t)p->n_ranges * sizeof *p->ranges);
    CHECK(!message.full);
    enum clime_err rc = tell_all(f, message.data, message.len, e);
    clime_buf_free(&message);
    if (rc) return rc;
    enum clime_err mine = clime_model_stage(f->model, p, &sum, &own); /* concurrently with the followers */
    rc = hear_all(f, "taking weights that lie in parts", &all, e);
    if (!rc && mine) rc = clime_fail(e, mine, "%s", own.msg);
    if (!rc) rc = clime_weight_parts_check(p, all.sum + sum, e);
    return settle(f, rc, e);
}
