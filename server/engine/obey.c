/* A follower's message loop. Called by server/follower.c on a follower's main thread; owns nothing.
 *
 * Invariant: steps run in the order received, and nothing else runs while the device has one.
 */
#include "server/engine/obey.h"

#include <stdlib.h>
#include <string.h>

#include "server/engine/engine.h"
#include "server/engine/followers.h"

enum { IDLE_MS = 20 }; /* longer than most steps, short enough to report a failure */

static enum clime_err misfit(const struct clime_follow *m, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INTERNAL, "the leader's message (word %d) does not fit", (int)m->word);
}

static enum clime_err run_rows(struct clime_runner *r, const struct clime_follow *m, const char *rest, size_t n,
                               struct clime_error *e) {
    const struct clime_step_shape *s = &m->shape;
    bool sane = s->T > 0 && s->n_seq > 0 && s->stride > 0 && m->n_copies >= 0;
    size_t words = sane ? clime_step_words(s->T, s->n_seq, s->stride) * sizeof(int32_t) : 0;
    size_t copies = (size_t)m->n_copies * sizeof(struct clime_page_copy);
    if (!sane || n != words + copies) return misfit(m, e);
    return clime_runner_follow_rows(r, s, (const int32_t *)(const void *)rest,
                                    (const struct clime_page_copy *)(const void *)(rest + words), m->n_copies, e);
}

static enum clime_err run_logits(struct clime_runner *r, const struct clime_follow *m, const char *rest, size_t n,
                                 struct clime_error *e) {
    bool fits = m->n_rows > 0 && n == (size_t)m->n_rows * sizeof(int32_t) &&
                clime_runner_follow_logits(r, (const int32_t *)(const void *)rest, m->n_rows);
    return fits ? CLIME_OK : misfit(m, e);
}

/* Out of memory is sent to the leader and does not end this rank. */
static enum clime_err change_memory(struct clime_model *model, struct clime_runner *r, struct clime_group *g,
                                    const struct clime_follow *m, struct clime_error *e) {
    struct clime_follow_answer a = {0};
    if (m->word == CLIME_FOLLOW_OWN) {
        clime_model_own(model, &a.error);
    } else if (m->word == CLIME_FOLLOW_GIVE_BACK) {
        if (m->tags & CLIME_MEMORY_KV) a.kv = clime_runner_release_kv(r);
        if (m->tags & CLIME_MEMORY_WEIGHTS) a.weights = clime_model_release(model);
    } else {
        if (m->tags & CLIME_MEMORY_WEIGHTS) {
            a.weights = model->released ? clime_model_own_bytes(model) : 0;
            clime_model_take_back(model, &a.error);
        }
        if (!a.error.code && m->tags & CLIME_MEMORY_KV) clime_runner_take_back_kv(r, &a.kv, &a.error);
    }
    return clime_group_send(g, 0, &a, sizeof a, e);
}

static enum clime_err open_share(struct clime_model *model, struct clime_group *g, const char *handles, size_t n,
                                 struct clime_error *e) {
    struct clime_follow_answer a = {0};
    const struct clime_follow m = {.word = CLIME_FOLLOW_OPEN};
    if (n != (size_t)model->ranks.n * CLIME_SHARE_BYTES) return misfit(&m, e);
    uint8_t own[CLIME_SHARE_BYTES];
    memcpy(own, handles + (size_t)model->ranks.rank * sizeof own, sizeof own);
    clime_model_open_share(model, own, &a.error);
    return clime_group_send(g, 0, &a, sizeof a, e);
}

/* Sends the checksum or the error; the leader decides. */
static enum clime_err stage(struct clime_model *model, struct clime_group *g, const struct clime_follow *m,
                            const char *rest, size_t n, struct clime_error *e) {
    struct clime_follow_answer a = {0};
    struct clime_weight_parts p = {.n_handles = m->n_handles, .n_ranges = m->n_ranges};
    bool sane = p.n_handles > 0 && p.n_handles <= CLIME_GROUP_MAX && p.n_ranges > 0;
    const size_t handles = sane ? (size_t)p.n_handles * sizeof *p.handles : 0;
    if (!sane || n != handles + (size_t)p.n_ranges * sizeof *p.ranges) return misfit(m, e);
    p.handles = (const uint8_t(*)[CLIME_SHARE_BYTES])(const void *)rest;
    p.ranges = (const struct clime_range *)(const void *)(rest + handles);
    clime_model_stage(model, &p, &a.sum, &a.error);
    return clime_group_send(g, 0, &a, sizeof a, e);
}

static enum clime_err read_weights(const struct clime_model *model, struct clime_group *g, const struct clime_follow *m,
                                   struct clime_error *e) {
    if (m->from < 0 || m->n <= 0 || m->n > model->layout.bytes || !model->flat || model->released) return misfit(m, e);
    char *own = xmalloc((size_t)m->n);
    int64_t n = clime_model_read_share(model, m->from, m->n, own);
    enum clime_err rc = model->ops->sync(model->dev, e); /* a failed device copies nothing */
    if (!rc) rc = clime_group_send(g, 0, own, (size_t)n, e);
    free(own);
    return rc;
}

static enum clime_err obey(struct clime_model *model, struct clime_runner *r, struct clime_group *g,
                           const struct clime_follow *m, const char *rest, size_t n, struct clime_error *e) {
    switch (m->word) {
    case CLIME_FOLLOW_ROWS:
        return run_rows(r, m, rest, n, e);
    case CLIME_FOLLOW_LOGITS:
        return run_logits(r, m, rest, n, e);
    case CLIME_FOLLOW_WEIGHTS:
        return clime_model_take_share(model, e);
    case CLIME_FOLLOW_OPEN:
        return open_share(model, g, rest, n, e);
    case CLIME_FOLLOW_STAGE:
        return stage(model, g, m, rest, n, e);
    case CLIME_FOLLOW_USE:
    case CLIME_FOLLOW_LET_GO:
        clime_model_use_share(model, m->word == CLIME_FOLLOW_USE);
        return CLIME_OK;
    case CLIME_FOLLOW_READ:
        return read_weights(model, g, m, e);
    case CLIME_FOLLOW_OWN:
    case CLIME_FOLLOW_GIVE_BACK:
    case CLIME_FOLLOW_TAKE_BACK:
        return change_memory(model, r, g, m, e);
    default:
        return misfit(m, e);
    }
}

/* Waits for the device's queue; a device failure fails this rank. */
static enum clime_err finish(struct clime_model *model, struct clime_error *e) {
    enum clime_err rc = model->ops->sync(model->dev, e);
    return rc ? rc : clime_model_ranks_check(model, e);
}

enum clime_err clime_follow_obey(struct clime_model *model, struct clime_runner *r, struct clime_group *g,
                                 struct clime_error *e) {
    struct clime_buf wire;
    struct clime_follow m = {.word = CLIME_FOLLOW_OWN};
    enum clime_err rc = CLIME_OK;
    clime_buf_init(&wire, CLIME_FOLLOW_BYTES);
    while (!rc && m.word != CLIME_FOLLOW_END) {
        if (!clime_group_said(g, 0, IDLE_MS)) rc = finish(model, e);
        if (!rc) rc = clime_group_receive(g, 0, "the next step", -1, &wire, e);
        if (!rc && wire.len < sizeof m) rc = clime_fail(e, CLIME_ERR_INTERNAL, "the leader's message is cut");
        if (rc) break;
        memcpy(&m, wire.data, sizeof m);
        bool step = m.word == CLIME_FOLLOW_ROWS || m.word == CLIME_FOLLOW_LOGITS;
        if (!step) rc = finish(model, e);
        if (!rc && m.word != CLIME_FOLLOW_END) rc = obey(model, r, g, &m, wire.data + sizeof m, wire.len - sizeof m, e);
        if (!rc) rc = step ? clime_model_ranks_check(model, e) : finish(model, e);
    }
    clime_buf_free(&wire);
    return rc;
}
