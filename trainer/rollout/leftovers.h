/* The groups that a rollout finds open in the ledger: cut off by a crash, or left over by the rollouts before it
 * (--partial-rollout). A view of the ledger, loaded once at the start of a rollout; main thread.
 *
 * The order in which they are taken is --buffer-filter-path:
 *   pop_first          oldest first: by the rollout and then the prompt's number (slime's, the default)
 *   pop_most_complete  those with the most finished members first, then those with the most tokens
 *   a shared library   as its `buffer` says (trainer/plugin/plugin.h); groups that it leaves out stay open
 */
#ifndef CLIME_TRAINER_ROLLOUT_LEFTOVERS_H
#define CLIME_TRAINER_ROLLOUT_LEFTOVERS_H

#include "trainer/ledger/db.h"
#include "trainer/sample/sample.h"

struct clime_leftovers {
    struct clime_sample **samples; /* [n * members] group by group; those before next * members are not ours any more */
    int n, next;                   /* groups */
    int offered;                   /* groups[offered..n) are not taken */
    int members;
};

struct clime_hook;

struct clime_leftovers_order {
    const char *name;              /* as above */
    const struct clime_hook *hook; /* the library, where it is one */
    int64_t rollout, version;      /* for it */
    const int64_t *held;           /* [n_held] groups that are open but in other hands: they are not loaded */
    int n_held;
};

/* Whether there is such an order; CLIME_ERR_INPUT. */
enum clime_err clime_leftovers_check(const char *name, struct clime_error *e);

enum clime_err clime_leftovers_load(struct clime_db *db, const struct clime_leftovers_order *order, int members,
                                    struct clime_leftovers *out, struct clime_error *e);
void clime_leftovers_free(struct clime_leftovers *l); /* and the samples that were not taken */

/* Takes up to n groups; returns how many. *samples are theirs, now the caller's (the array stays in l). */
int clime_leftovers_take(struct clime_leftovers *l, int n, struct clime_sample ***samples);

#endif
