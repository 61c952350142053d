/* Detects two trainers on one server. Each then finds the other's weights in place of its own. Labels keep their
 * samples apart in any case (trainer/sample/label.h); this file reports the conflict and ends the second trainer, so
 * that the first keeps the server.
 *
 * The second trainer finds the other's weights when it starts, and again after it pushed its own. A run that follows an
 * ended or killed run finds them only once; so does a killed run that finds its own earlier weights.
 *
 * Under the fleet's lock.
 */
#include <stdio.h>

#include "common/log.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define MOST_TAKEN 5 /* consecutive pushes to retake a server from a trainer that started at the same moment */

static void remember(char who[CLIME_VERSION_LABEL], struct clime_str run) {
    snprintf(who, CLIME_VERSION_LABEL, CLIME_STR_FMT, CLIME_STR_ARG(run));
}

void clime_fleet_see_label(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    const struct clime_str run = clime_label_run(clime_str_of(label)), name = clime_label_name(run),
                           own = clime_label_name(clime_str_of(f->o.run));
    const bool same = clime_str_eq(name, own);
    if (clime_str_is(run, f->o.run)) s->was_ours = true; /* also after it was unlisted for a while */
    if (!run.len || clime_str_is(run, f->o.run)) return;
    if (!s->was_ours) {
        LOG_INFO("%s has weights \"%s\", of %s: it gets those of this one", clime_fleet_name(s), label,
                 same ? "another start of this run" : "another run");
        remember(s->met, run);
        return;
    }
    struct clime_error e;
    clime_fail(&e, CLIME_ERR_UNAVAILABLE,
               "run " CLIME_STR_FMT
               "%s drives %s too, which has its weights \"%s\" instead of those of this run, " CLIME_STR_FMT
               ". A server has the weights of one run at a time: end one of the two, or give it servers "
               "of its own",
               CLIME_STR_ARG(name), same ? " in a copy of its folder" : "", clime_fleet_name(s), label,
               CLIME_STR_ARG(own));
    if (!clime_str_is(run, s->taker)) s->n_taken = 0;
    remember(s->taker, run);
    if (clime_str_is(run, s->met) || ++s->n_taken > MOST_TAKEN) {
        f->fatal = e;
        return;
    }
    LOG_WARN("%s. It gets those of this run again", e.msg);
    clime_event(f->o.ledger, f->o.incarnation, "worker", "%s", e.msg);
}

/* Polling misses another run's push that is quickly overwritten; the replaced label shows it. */
void clime_fleet_see_replaced(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    if (s->was_ours && s->met[0] && clime_str_is(clime_label_run(clime_str_of(label)), s->met))
        clime_fleet_see_label(f, s, label);
}

/* A foreign label from before our first push may still be in place: the push then had no effect. */
bool clime_fleet_see_label_after_push(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    const struct clime_str run = clime_label_run(clime_str_of(label));
    const bool between = run.len && !clime_str_is(run, f->o.run) && (s->was_ours || !clime_str_is(run, s->met));
    clime_fleet_see_label(f, s, label);
    return between;
}
