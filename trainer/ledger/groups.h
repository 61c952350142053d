/* Ledger: groups (a prompt and its members' rows). */
#ifndef CLIME_TRAINER_LEDGER_GROUPS_H
#define CLIME_TRAINER_LEDGER_GROUPS_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample.h"

enum clime_group_state { CLIME_GROUP_OPEN, CLIME_GROUP_DONE, CLIME_GROUP_DROPPED };

struct clime_group {
    int64_t id; /* the prompt's number in the run */
    int64_t rollout;
    int64_t epoch, line;                   /* where the prompt comes from */
    const char *prompt, *label, *metadata; /* borrowed; label and metadata may be NULL */
    struct clime_sample **members;         /* [n], borrowed: pending samples with their prompt ids */
    int n;
};

/* Writes new groups with their members as pending samples, in order, in one transaction; fills the members' row_id. */
enum clime_err clime_groups_open(struct clime_ledger *l, const struct clime_group *groups, int n,
                                 struct clime_error *e);

/* Ends a group: DONE when all members are finished, DROPPED with the reason when one failed. */
enum clime_err clime_group_close(struct clime_ledger *l, int64_t id, enum clime_group_state state, const char *reason,
                                 struct clime_error *e);

/* The number that the next group gets; and of this rollout, how many groups were dropped. */
enum clime_err clime_groups_next(struct clime_db *db, int64_t *next, struct clime_error *e);
enum clime_err clime_groups_dropped(struct clime_db *db, int64_t rollout, int *n, struct clime_error *e);

#endif
