/* Team of ranks: commands to the other ranks (see team.h). */
#include "trainer/learn/team.h"

#include <stdlib.h>

#include "common/group/start.h"
#include "common/log.h"
#include "trainer/learn/command_line.h"
#include "trainer/learn/wire.h"
#include "trainer/plugin/hooks.h"

#define MOST_BYTES ((size_t)1 << 33) /* of a message with a step's samples */
#define TELL_US 10000000             /* wait for the others when ending before the team opened */
#define LIMIT_OPTION "--distributed-timeout-minutes"

static bool was_opened; /* rank 0 and the others were in contact */

/* Under a launcher a follower ignores its own arguments, so different ones mean a rank of another run. */
static enum clime_err compare_commands(const struct clime_team *t, struct clime_error *e) {
    struct clime_facts mine = {0};
    clime_command_line_facts(&mine);
    enum clime_err rc = clime_group_compare(t->group, &mine, e);
    clime_facts_free(&mine);
    return rc;
}

static struct clime_team *new_team(const struct clime_place *p) {
    struct clime_team *t = xcalloc(1, sizeof *t);
    t->rank = p->rank;
    t->world = p->world;
    clime_buf_init(&t->wire, MOST_BYTES);
    return t;
}

enum clime_err clime_team_open(const struct clime_learner_options *o, struct clime_team **out, int *lost,
                               struct clime_error *e) {
    static const char *const argv[] = {"/proc/self/exe", "rank", NULL};
    struct clime_group_options g = {.place = o->place,
                                    .listener = -1,
                                    .meet_limit_us = o->rank_limit_us,
                                    .limit_us = o->rank_limit_us,
                                    .limit_option = LIMIT_OPTION,
                                    .left_out = o->left_out,
                                    .lost = lost};
    enum clime_err rc = CLIME_OK;
    was_opened = true;
    if (o->place.world < 2) rc = clime_group_start(o->n_ranks, argv, o->rank_logs, &g, e);
    if (rc) return rc;
    struct clime_team *t = new_team(&g.place);
    t->children = g.children;
    rc = clime_group_meet(&g, &t->group, e);
    if (!rc && !t->children) rc = compare_commands(t, e);
    clime_wire_put_options(&t->wire, o);
    if (!rc) rc = clime_team_say(t, e);
    if (!rc) LOG_INFO("%d ranks are together", t->world);
    enum clime_err unused;
    if (rc && t->group) *lost = clime_group_lost(t->group, &unused);
    if (rc)
        clime_team_close(t);
    else
        *out = t;
    return rc;
}

enum clime_err clime_team_join(const struct clime_place *p, struct clime_learner_options *o, struct clime_team **out,
                               struct clime_error *e) {
    const int64_t first_limit_us = 600000000; /* until rank 0 sends its limit */
    const struct clime_group_options g = {
        .place = *p, .listener = -1, .meet_limit_us = first_limit_us, .limit_us = first_limit_us};
    struct clime_team *t = new_team(p);
    enum clime_err rc = clime_group_meet(&g, &t->group, e);
    if (!rc && !p->ours) rc = compare_commands(t, e);
    if (!rc) rc = clime_group_receive(t->group, 0, "the options", first_limit_us, &t->wire, e);
    struct clime_wire w = {t->wire.data, t->wire.data + t->wire.len, false};
    if (!rc) rc = clime_wire_options(&w, o, e);
    if (rc && t->group) clime_group_fail(t->group, e);
    if (rc) {
        clime_team_close(t);
        return rc;
    }
    clime_group_set_limit(t->group, o->rank_limit_us, LIMIT_OPTION);
    *out = t;
    return CLIME_OK;
}

void clime_team_dismiss(const struct clime_place *p, const struct clime_error *why) {
    struct clime_error nothing;
    clime_fail(&nothing, CLIME_ERR_ABORTED, "nothing is trained, it has ended");
    if (p->world > 1 && p->rank == 0 && !was_opened) clime_group_refuse(p, TELL_US, why->code ? why : &nothing);
}

enum clime_err clime_team_link(struct clime_team *t, const struct clime_model *m, const struct clime_objective *o,
                               struct clime_error *e) {
    struct clime_facts mine = {0};
    clime_model_facts(m, &mine);
    clime_facts_put_checksum(&mine, "trained-tensors", m->layout.state_hash);
    if (o->custom_loss) clime_facts_put(&mine, "custom-loss-function", o->custom_loss->sha256);
    enum clime_err rc = clime_group_compare(t->group, &mine, e);
    clime_facts_free(&mine);
    if (!rc) rc = clime_links_open(m->ops, m->dev, t->group, &t->links, e);
    if (!rc && t->rank == 0) LOG_INFO("%d ranks exchange bytes by %s", t->world, t->links->way);
    return rc;
}

static void put_model(const char *prefix, const struct clime_model *m, struct clime_facts *out) {
    struct clime_facts one = {0};
    if (!m) return;
    clime_model_facts(m, &one);
    clime_facts_add(out, prefix, &one);
    clime_facts_free(&one);
}

enum clime_err clime_team_loaded(struct clime_team *t, const struct clime_model *policy,
                                 const struct clime_model *reference, const struct clime_model *critic,
                                 struct clime_error *e) {
    struct clime_facts mine = {0};
    if (!t) return CLIME_OK;
    put_model("", policy, &mine);
    put_model("reference.", reference, &mine);
    put_model("critic.", critic, &mine);
    enum clime_err rc = clime_group_compare(t->group, &mine, e);
    clime_facts_free(&mine);
    return rc;
}

void clime_team_close(struct clime_team *t) {
    struct clime_error unused;
    if (!t) return;
    if (t->rank == 0 && t->group && clime_group_check(t->group, &unused) == CLIME_OK) {
        clime_team_begin(t, CLIME_TEAM_END);
        clime_team_say(t, &unused);
    }
    clime_links_close(t->links);
    clime_group_close(t->group);
    clime_group_stop(t->children);
    clime_buf_free(&t->wire);
    free(t);
}

struct clime_buf *clime_team_begin(struct clime_team *t, enum clime_team_word word) {
    clime_buf_clear(&t->wire);
    clime_wire_put_int(&t->wire, word);
    return &t->wire;
}

enum clime_err clime_team_say(struct clime_team *t, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    if (t->wire.full)
        return clime_fail(e, CLIME_ERR_LIMIT, "what the other ranks must be told has over %zu bytes", MOST_BYTES);
    for (int r = 1; r < t->world && !rc; r++) rc = clime_group_send(t->group, r, t->wire.data, t->wire.len, e);
    return rc;
}

enum clime_err clime_team_done(struct clime_team *t, enum clime_err rc, struct clime_error *e) {
    if (!t) return rc;
    if (!rc && t->rank) return clime_group_send(t->group, 0, "", 0, e);
    for (int r = 1; r < t->world && !rc; r++)
        rc = clime_group_receive(t->group, r, "the end of a command", clime_group_limit_us(t->group), &t->wire, e);
    if (!rc) return CLIME_OK;
    /* The others are in the same command or wait for the next. A device may wait for data they will never send, and
     * freeing its memory waits for the device; closing the links ends that. */
    clime_group_fail(t->group, e);
    clime_group_give_up(t->group, e);
    clime_links_close(t->links);
    t->links = NULL;
    return rc;
}
