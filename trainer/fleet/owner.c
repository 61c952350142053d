/* Whose weights a server has. It has those of one run at a time: of two that drive it, each finds the other's where its
 * own were. The labels keep their samples apart whatever happens (trainer/sample/label.h); this is so that somebody is
 * told, and so that the one who came second ends and leaves the server to the first.
 *
 * Who came second knows it: it found the other's weights there when it came, and finds them there again after it had
 * given its own. A run that only follows another, which has ended or was killed, finds them but once.
 *
 * Under the fleet's lock.
 */
#include <stdio.h>

#include "common/log.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define MOST_TAKEN 5 /* times that a server is taken back from a run that came later, or at the same moment */

void clime_fleet_see_label(struct clime_fleet *f, struct clime_fleet_server *s, const char *label) {
    struct clime_str run = clime_label_run(clime_str_of(label));
    if (!run.len || clime_str_is(run, f->o.run)) return;
    if (!s->was_ours) {
        LOG_INFO("%s has weights \"%s\", of another run: it gets those of this one", clime_fleet_name(s), label);
        snprintf(f->met, sizeof f->met, CLIME_STR_FMT, CLIME_STR_ARG(run));
        return;
    }
    struct clime_error e;
    clime_fail(&e, CLIME_ERR_UNAVAILABLE,
               "run " CLIME_STR_FMT " drives %s too, which has its weights \"%s\" instead of those of this run, %s. A "
               "server has the weights of one run at a time: end one of the two, or give it servers of its own",
               CLIME_STR_ARG(run), clime_fleet_name(s), label, f->o.run);
    if (clime_str_is(run, f->met) || ++s->n_taken > MOST_TAKEN) {
        f->fatal = e;
        return;
    }
    LOG_WARN("%s. It gets those of this run again", e.msg);
    clime_event(f->o.ledger, f->o.incarnation, "worker", "%s", e.msg);
}
