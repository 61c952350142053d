/* Ledger: groups (a prompt and its members' rows). */
#ifndef CLIME_TRAINER_LEDGER_GROUPS_H
#define CLIME_TRAINER_LEDGER_GROUPS_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/sample.h"

enum clime_drop_cause {
    CLIME_DROP_FAILED, /* a member failed; the reason is its error */
    CLIME_DROP_FILTER, /* the filter's reason */
    CLIME_DROP_SURPLUS /* not needed: the rollout was full */
};

struct clime_group {
    int64_t id;                            /* the prompt's number in the run */
    int64_t rollout;                       /* that opened it */
    int64_t epoch, line;                   /* source of the prompt */
    const char *source;                    /* the source's name, borrowed; NULL = only one source */
    const char *prompt, *label, *metadata; /* borrowed; label and metadata may be NULL */
    struct clime_sample **members;         /* [n], borrowed: pending samples with their prompt ids */
    int n;
};

/* Writes new groups with their members as pending samples, in order, in one transaction; fills the members' row_id. */
enum clime_err clime_groups_open(struct clime_ledger *l, const struct clime_group *groups, int n,
                                 struct clime_error *e);

/* Drops a group from `rollout`. */
enum clime_err clime_group_drop(struct clime_ledger *l, int64_t id, int64_t rollout, enum clime_drop_cause cause,
                                const char *reason, struct clime_error *e);

/* Inside the transaction that chooses a rollout's steps: marks the groups of steps first..last done and, unless
 * keep_open, every other open group surplus. */
enum clime_err clime_groups_end(struct clime_db *db, int64_t rollout, int64_t first, int64_t last, bool keep_open,
                                struct clime_error *e);

/* For a rollout without steps (--debug-rollout-only): marks its samples' groups done, the others as above, and stores
 * its metrics line under step rollout + 1. One transaction. */
enum clime_err clime_groups_use(struct clime_ledger *l, int64_t rollout, struct clime_sample *const *samples, int n,
                                bool keep_open, const char *metrics_line, struct clime_error *e);

/* Number of rollouts that used groups. */
enum clime_err clime_groups_rollouts(struct clime_db *db, int64_t *n, struct clime_error *e);

/* The first group that the rollout opened; -1 if none. */
enum clime_err clime_groups_first(struct clime_db *db, int64_t rollout, int64_t *first, struct clime_error *e);

/* Name of the group's prompt source; NULL if there was one source. The caller frees it. */
enum clime_err clime_group_source(struct clime_db *db, int64_t id, char **source, struct clime_error *e);

/* Number of the next group. */
enum clime_err clime_groups_next(struct clime_db *db, int64_t *next, struct clime_error *e);

/* Counts the groups that the rollout dropped so far by cause, a filter's by reason. The caller frees the list. */
struct clime_drop_count {
    enum clime_drop_cause cause;
    char reason[64]; /* of a filter, else "" */
    int n;
};
enum clime_err clime_groups_dropped(struct clime_db *db, int64_t rollout, struct clime_drop_count **out, int *n,
                                    struct clime_error *e);

#endif
