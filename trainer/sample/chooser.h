/* Which groups make a rollout, and how many more have to be submitted: counting and nothing else. No samples, no
 * ledger, no clock; one thread.
 *
 * Nouns
 *   group     a number 0, 1, ... in the order of submission.
 *   end       what became of a group: finished (with the filter's verdict) or failed.
 *   decision  accepted or dropped.
 *
 * A decision is made when the group has ended; with `in_order` only after all groups before it, so that the decisions
 * do not depend on which group ended first. When `target` groups are accepted the rollout is full: nothing more is
 * decided, whatever has ended.
 *
 * After a crash the groups that were dropped before it are not added again; with in_order the others are decided as
 * they would have been.
 *
 * How many groups are submitted does not depend on timing either: whenever fewer than `target` are left that are not
 * dropped, batches of `batch` are added until there are enough. A group is submitted in the end exactly when the drops
 * among those before it made it necessary.
 *
 * Several rollouts in a row (not in order): `wanted` may be a multiple of the target, the groups that the next rollouts
 * need as well; and when one is full and taken away, what is not decided begins the next.
 */
#ifndef CLIME_TRAINER_SAMPLE_CHOOSER_H
#define CLIME_TRAINER_SAMPLE_CHOOSER_H

#include <stdbool.h>

struct clime_verdict { /* of a filter over a finished group */
    bool keep;
    bool keep_when_insufficient; /* accept it after all where dropping it would make another batch necessary */
    char reason[64];             /* why not; part of a metric's name */
};

enum clime_decision { CLIME_UNDECIDED, CLIME_ACCEPTED, CLIME_DROPPED };

struct clime_chosen {
    int skipped; /* groups before it that were dropped by an earlier incarnation and were not added; set by the caller
                  */
    bool ended, failed;
    struct clime_verdict verdict;
    enum clime_decision decision;
};

struct clime_chooser {
    int target, batch; /* groups; > 0 */
    int wanted;        /* groups to have that are not dropped: target, or what the caller sets */
    bool in_order;
    struct clime_chosen *groups; /* [n], owned */
    int n, n_accepted, n_dropped;
    int next;            /* in_order: the first group that is not decided */
    int *ended, n_ended; /* else: groups in the order in which they ended; ended[taken..] are not decided; owned */
    int taken;
    int n_carried; /* groups that the rollout before it left */
};

void clime_chooser_init(struct clime_chooser *c, int target, int batch, bool in_order);
void clime_chooser_free(struct clime_chooser *c);

bool clime_chooser_full(const struct clime_chooser *c);
int clime_chooser_missing(const struct clime_chooser *c); /* groups to submit now; 0 when there are enough */
void clime_chooser_add(struct clime_chooser *c, int n);   /* n more were submitted */

void clime_chooser_finish(struct clime_chooser *c, int group, const struct clime_verdict *v);
void clime_chooser_fail(struct clime_chooser *c, int group);

/* The sampling of a finished group that is not decided begins anew. Not in order. */
void clime_chooser_reopen(struct clime_chooser *c, int group);

/* A new rollout begins, with the groups that are not decided, in their order. place[n]: out, the number of each from
 * now on, -1 = it was decided. Not in order. */
void clime_chooser_next(struct clime_chooser *c, int *place);

/* Decides the next group that can be decided: its number, or -1. Its decision is in groups[]. */
int clime_chooser_decide(struct clime_chooser *c);

#endif
