/* Exports the policy's weights to other processes of this host (see learner.h). Called by the learner's owner;
 * followers run rank 0's command.
 *
 * Invariant: a rank whose memory cannot be exported returns the reason as a result, not as a failed command: the team
 * continues and the weights are pushed another way.
 */
#include <string.h>

#include "trainer/learn/learner_int.h"

/* Whether a rank is on rank 0's host: rank 0 started it, or both report the same host. */
static bool ours_or_here(const struct clime_learner *l, const struct clime_model_card *mine,
                         const struct clime_model_card *its) {
    return l->team->children || (mine->host[0] && !strcmp(its->host, mine->host));
}

enum clime_err clime_learner_show(struct clime_learner *l, struct clime_model_card cards[CLIME_GROUP_MAX], int *n,
                                  struct clime_error *e) {
    const int world = l->team ? l->team->world : 1, rank = l->team ? l->team->rank : 0;
    size_t from[CLIME_GROUP_MAX + 1];
    enum clime_err err = CLIME_OK;
    if (clime_team_leads(l->team)) {
        clime_team_begin(l->team, CLIME_TEAM_SHOW);
        if ((err = clime_team_say(l->team, e))) return err;
    }
    for (int r = 0; r <= world; r++) from[r] = (size_t)r * sizeof *cards;
    err = clime_model_show(l->model, l->opts.model.dev.gpu, &cards[rank], e);
    if (!err && l->team) err = clime_group_share(l->team->group, "where the weights are", cards, from, e);
    for (*n = 1; !err && *n < world && ours_or_here(l, &cards[0], &cards[*n]);) ++*n;
    return clime_team_done(l->team, err, e);
}

struct part { /* a rank's reply about its part */
    struct clime_model_card card;
    uint64_t sum;
    struct clime_error error; /* why it cannot be exported */
};

static void describe(struct clime_learner *l, struct part *own) {
    if (!l->ranges) l->ranges = clime_ring_gives(l->model, &l->n_ranges);
    *own = (struct part){0};
    if (!clime_model_show(l->model, l->opts.model.dev.gpu, &own->card, &own->error))
        clime_model_sum(l->model, l->ranges, l->n_ranges, &own->sum, &own->error);
}

/* Combines all ranks' replies into the servers' description. */
static enum clime_err put_together(struct clime_learner *l, const struct part *parts, struct clime_weight_parts *out,
                                   struct clime_error *e) {
    *out = (struct clime_weight_parts){
        .handles = (const uint8_t(*)[CLIME_SHARE_BYTES])l->handles,
        .n_handles = l->team->world,
        .ranges = l->ranges,
        .n_ranges = l->n_ranges,
    };
    for (int r = 0; r < l->team->world; r++) {
        if (parts[r].error.code)
            return clime_fail(e, parts[r].error.code, "the weights of rank %d: %.400s", r, parts[r].error.msg);
        if (r && !ours_or_here(l, &parts[0].card, &parts[r].card))
            return clime_fail(e, CLIME_ERR_UNAVAILABLE, "the weights of rank %d lie on another host", r);
        memcpy(l->handles[r], parts[r].card.handle, sizeof l->handles[r]);
        out->checksum += parts[r].sum;
    }
    return CLIME_OK;
}

enum clime_err clime_learner_parts(struct clime_learner *l, struct clime_weight_parts *out, struct clime_error *e) {
    struct part parts[CLIME_GROUP_MAX];
    struct clime_error why = {0};
    size_t from[CLIME_GROUP_MAX + 1];
    enum clime_err err = CLIME_OK;
    CHECK(l->model->ring);
    if (clime_team_leads(l->team)) {
        clime_team_begin(l->team, CLIME_TEAM_PARTS);
        if ((err = clime_team_say(l->team, e))) return err;
    }
    for (int r = 0; r <= l->team->world; r++) from[r] = (size_t)r * sizeof *parts;
    describe(l, &parts[l->team->rank]);
    err = clime_group_share(l->team->group, "where parts of the weights are", parts, from, e);
    if (!err && clime_team_leads(l->team)) put_together(l, parts, out, &why);
    if ((err = clime_team_done(l->team, err, e)) || !why.code) return err;
    return clime_fail(e, why.code, "%s", why.msg);
}
