/* Open groups that a rollout finds in the ledger: interrupted by a crash, or left over by earlier rollouts
 * (--partial-rollout). Loaded once at the start of a rollout; main thread.
 *
 * --buffer-filter-path sets their order:
 *   pop_first          oldest first: by rollout, then prompt number (slime's, the default)
 *   pop_most_complete  most finished members first, then most tokens
 *   a shared library   its `buffer` function (trainer/plugin/plugin.h); groups that it omits stay open
 */
#ifndef CLIME_TRAINER_ROLLOUT_LEFTOVERS_H
#define CLIME_TRAINER_ROLLOUT_LEFTOVERS_H

#include "trainer/ledger/db.h"
#include "trainer/sample/sample.h"

struct clime_leftovers {
    struct clime_sample **samples; /* [n * members] group by group; those before next * members belong to the caller */
    int n, next;                   /* groups */
    int offered;                   /* groups[offered..n) are never taken */
    int members;
};

struct clime_hook;

struct clime_leftovers_order {
    const char *name;              /* as above */
    const struct clime_hook *hook; /* the library, if any */
    int64_t rollout, version;      /* passed to the library */
    const int64_t *held;           /* [n_held] open groups in use elsewhere: not loaded */
    int n_held;
};

/* CLIME_ERR_INPUT if there is no such order. */
enum clime_err clime_leftovers_check(const char *name, struct clime_error *e);

enum clime_err clime_leftovers_load(struct clime_db *db, const struct clime_leftovers_order *order, int members,
                                    struct clime_leftovers *out, struct clime_error *e);
void clime_leftovers_free(struct clime_leftovers *l); /* and the samples not taken */

/* Takes up to n groups; returns how many. The caller owns *samples (the array stays in l). */
int clime_leftovers_take(struct clime_leftovers *l, int n, struct clime_sample ***samples);

#endif
