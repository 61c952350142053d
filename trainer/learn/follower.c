/* Executes rank 0's commands (see follower.h). Owns the learner.
 *
 * Invariant: a follower makes no decisions. Any error is reported to rank 0 and ends this process; rank 0 restarts the
 * group from its checkpoint. */
#include "trainer/learn/follower.h"

#include <signal.h>
#include <stdlib.h>

#include "common/group/start.h"
#include "common/log.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/wire.h"

static enum clime_err score(struct clime_learner *l, struct clime_wire *w, struct clime_error *e) {
    struct clime_wire_batch b;
    enum clime_team_model which = (enum clime_team_model)clime_wire_int(w);
    int64_t oldest = clime_wire_int(w);
    enum clime_err rc = clime_wire_batch(w, &b, e);
    if (!rc) {
        struct clime_stream s;
        clime_stream_init(&s, (const struct clime_sample *const *)b.samples, NULL, b.n, oldest);
        if (which == CLIME_TEAM_CRITIC)
            rc = clime_critic_values(l->critic, &b.packing, &s, s.value, e);
        else
            rc = clime_learner_score(l, which == CLIME_TEAM_REFERENCE ? l->ref_train : l->train, s.samples, &b.packing,
                                     &s, s.old, e);
        rc = clime_team_done(l->team, rc, e);
        clime_stream_free(&s);
    }
    clime_wire_batch_free(&b);
    return rc;
}

static enum clime_err step(struct clime_learner *l, struct clime_wire *w, struct clime_error *e) {
    struct clime_wire_batch b;
    struct clime_step_stats stats;
    struct clime_step_input in = {.version = clime_wire_int(w)};
    in.rollout_version = clime_wire_int(w);
    in.global_batch = clime_wire_int(w);
    in.critic_only = clime_wire_int(w) != 0;
    enum clime_err rc = clime_wire_batch(w, &b, e);
    in.samples = (const struct clime_sample *const *)b.samples;
    in.estimate = b.estimate;
    in.n = b.n;
    in.packing = &b.packing;
    if (!rc) rc = clime_learner_step(l, &in, &stats, e);
    clime_wire_batch_free(&b);
    return rc;
}

static enum clime_err in_folder(struct clime_learner *l, struct clime_wire *w, enum clime_team_word word,
                                struct clime_error *e) {
    char *dir = clime_wire_text(w);
    enum clime_err rc = CLIME_OK;
    if (!dir) rc = clime_fail(e, CLIME_ERR_INTERNAL, "rank 0 names no folder");
    if (!rc) rc = word == CLIME_TEAM_SAVE ? clime_learner_save(l, dir, e) : clime_learner_load(l, dir, e);
    free(dir);
    return rc;
}

/* Runs until the end command or an error. */
static enum clime_err obey(struct clime_learner *l, struct clime_error *e) {
    struct clime_team *t = l->team;
    for (;;) {
        enum clime_err rc = clime_group_receive(t->group, 0, "the next command", -1, &t->wire, e);
        if (rc) return rc;
        struct clime_wire w = {t->wire.data, t->wire.data + t->wire.len, false};
        enum clime_team_word word = (enum clime_team_word)clime_wire_int(&w);
        switch (word) {
        case CLIME_TEAM_SCORE:
            rc = score(l, &w, e);
            break;
        case CLIME_TEAM_STEP:
            rc = step(l, &w, e);
            break;
        case CLIME_TEAM_REFRESH:
            rc = clime_learner_refresh_reference(l, e);
            break;
        case CLIME_TEAM_WHOLE:
            rc = clime_learner_gather(l, (enum clime_team_model)clime_wire_int(&w), e);
            break;
        case CLIME_TEAM_SHOW: {
            struct clime_model_card cards[CLIME_GROUP_MAX];
            int n;
            rc = clime_learner_show(l, cards, &n, e);
            break;
        }
        case CLIME_TEAM_PARTS: {
            struct clime_weight_parts parts;
            rc = clime_learner_parts(l, &parts, e);
            break;
        }
        case CLIME_TEAM_SAVE:
        case CLIME_TEAM_LOAD:
            rc = in_folder(l, &w, word, e);
            break;
        case CLIME_TEAM_END:
            return CLIME_OK;
        default:
            rc = clime_fail(e, CLIME_ERR_INTERNAL, "rank 0 says word %d, which is none", (int)word);
        }
        if (rc) return rc;
    }
}

int clime_follower_main(void) {
    struct clime_place p;
    struct clime_error e;
    if (!clime_place_take(&p, &e) && p.rank > 0) return clime_follower_run(&p);
    LOG_ERROR("rank: a trainer starts this, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment");
    return 2;
}

int clime_follower_run(const struct clime_place *p) {
    static struct clime_learner_options o; /* its texts are never freed */
    struct clime_team *team = NULL;
    struct clime_learner *l = NULL;
    struct clime_error e = {0};
    enum clime_err rc = p->ours ? clime_group_end_with_parent(&e) : CLIME_OK;
    if (!rc) rc = clime_team_join(p, &o, &team, &e);
    if (!rc) signal(SIGTERM, SIG_IGN); /* launchers send it to all ranks; rank 0 handles it and then ends this one */
    o.place = *p;                      /* not rank 0's */
    if (!rc && !(rc = clime_learner_prepare(&o, &l, &e))) {
        l->team = team;
        rc = clime_learner_start(l, &e);
        if (!rc) rc = obey(l, &e);
    }
    if (rc) LOG_ERROR("rank %d: %s", p->rank, e.msg);
    if (rc && team) clime_group_fail(team->group, &e);
    if (rc && team) clime_group_give_up(team->group, &e); /* stays until rank 0 has read the error */
    if (!l) clime_team_close(team);
    clime_learner_close(l);
    return rc ? 1 : 0;
}
