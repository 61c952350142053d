/* Group selection for a rollout: which groups are accepted, and how many more to submit. Counts only: no samples, no
 * ledger, no clock; one thread.
 *
 * Nouns
 *   group     a number 0, 1, ... in order of submission.
 *   end       a group's end: finished (with the filter's verdict) or failed.
 *   decision  accepted or dropped.
 *
 * A group is decided when it has ended; with `in_order` only after all groups before it, so decisions do not depend on
 * which group ended first. With `target` groups accepted the rollout is full, and nothing more is decided.
 *
 * After a crash, groups dropped before it are not added again; with in_order the others are decided as without a crash.
 *
 * The number of submitted groups does not depend on timing either: while fewer than `target` groups are not dropped,
 * batches of `batch` are added. A group is submitted exactly when the drops among earlier groups make it necessary.
 *
 * Consecutive rollouts (not in order): `wanted` may be a multiple of the target, to include groups of the next
 * rollouts; when a rollout is full and removed, its undecided groups begin the next. */
#ifndef CLIME_TRAINER_SAMPLE_CHOOSER_H
#define CLIME_TRAINER_SAMPLE_CHOOSER_H

#include <stdbool.h>

struct clime_verdict { /* a filter's verdict on a finished group */
    bool keep;
    bool keep_when_insufficient; /* accept it if dropping it would require another batch */
    char reason[64];             /* reason for a drop; part of a metric's name */
};

enum clime_decision { CLIME_UNDECIDED, CLIME_ACCEPTED, CLIME_DROPPED };

struct clime_chosen {
    int skipped; /* groups before it that an earlier process dropped; set by the caller */
    bool ended, failed;
    struct clime_verdict verdict;
    enum clime_decision decision;
};

struct clime_chooser {
    int target, batch; /* groups; > 0 */
    int wanted;        /* groups wanted that are not dropped: target, or set by the caller */
    bool in_order;
    struct clime_chosen *groups; /* [n], owned */
    int n, n_accepted, n_dropped;
    int next;            /* in_order: first undecided group */
    int *ended, n_ended; /* else: groups in the order they ended; ended[taken..] are undecided; owned */
    int taken;
    int n_carried; /* groups from the rollout before */
};

void clime_chooser_init(struct clime_chooser *c, int target, int batch, bool in_order);
void clime_chooser_free(struct clime_chooser *c);

bool clime_chooser_full(const struct clime_chooser *c);
int clime_chooser_missing(const struct clime_chooser *c); /* groups to submit now; 0 = enough */
void clime_chooser_add(struct clime_chooser *c, int n);   /* n more were submitted */

void clime_chooser_finish(struct clime_chooser *c, int group, const struct clime_verdict *v);
void clime_chooser_fail(struct clime_chooser *c, int group);

/* Reopens a finished, undecided group: its sampling restarts. Not in order. */
void clime_chooser_reopen(struct clime_chooser *c, int group);

/* Begins a new rollout with the undecided groups, in their order. place[n], out: the new number of each, -1 = it was
 * decided. Not in order. */
void clime_chooser_next(struct clime_chooser *c, int *place);

/* Decides the next group that can be decided; returns its number, or -1. The decision is in groups[]. */
int clime_chooser_decide(struct clime_chooser *c);

#endif
