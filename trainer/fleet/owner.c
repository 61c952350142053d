/* Whose weights a server has. It has those of one trainer at a time: of two that drive it, each finds the other's where
 * its own were. The labels keep their samples apart whatever happens (trainer/sample/label.h); this is so that somebody
 * is told, and so that the one who came second ends and leaves the server to the first.
 *
 * Who came second knows it: it found the other's weights there when it came, and finds them there again after it had
 * given its own. A run that only follows another, which has ended or was killed, finds them but once; so does one that
 * was killed itself and finds what it had given before.
 *
 * Under the fleet's lock.
 */
#include <stdio.h>

#include "common/log.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define MOST_TAKEN 5 /* times one after another that a server is taken back from one that came at the same moment */

static void remember(char who[CLIME_VERSION_LABEL], struct clime_str run) {
    snprintf(who, CLIME_VERSION_LABEL, CLIME_STR_FMT, CLIME_STR_ARG(run));
}

void clime_fleet_see_label(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    const struct clime_str run = clime_label_run(clime_str_of(label)), name = clime_label_name(run),
                           own = clime_label_name(clime_str_of(f->o.run));
    const bool same = clime_str_eq(name, own);
    if (clime_str_is(run, f->o.run)) s->was_ours = true; /* of one that left its router and is back it is all we know */
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

/* Pushes that follow each other closely hide the other's from those who only look. */
void clime_fleet_see_replaced(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    if (s->was_ours && s->met[0] && clime_str_is(clime_label_run(clime_str_of(label)), s->met))
        clime_fleet_see_label(f, s, label);
}

/* A run's that it had before ours were ever there may just as well be there still: then the push did nothing. */
bool clime_fleet_see_label_after_push(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    const struct clime_str run = clime_label_run(clime_str_of(label));
    const bool between = run.len && !clime_str_is(run, f->o.run) && (s->was_ours || !clime_str_is(run, s->met));
    clime_fleet_see_label(f, s, label);
    return between;
}
