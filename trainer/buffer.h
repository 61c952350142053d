/* The groups that a rollout finds open in the ledger: cut off by a crash, or left over by the rollouts before it
 * (--partial-rollout). A view of the ledger, loaded once at the start of a rollout; main thread.
 *
 * The order in which they are taken is --buffer-filter-path:
 *   pop_first          oldest first: by the rollout and then the prompt's number (slime's, the default)
 *   pop_most_complete  those with the most finished members first, then those with the most tokens
 */
#ifndef CLIME_TRAINER_BUFFER_H
#define CLIME_TRAINER_BUFFER_H

#include "trainer/ledger/db.h"
#include "trainer/sample.h"

struct clime_buffer {
    struct clime_sample **samples; /* [n * members] group by group; those before next * members are not ours any more */
    int n, next;                   /* groups */
    int members;
};

/* order: a name as above; CLIME_ERR_INPUT when there is none such, checked before anything is read. db NULL: only the
 * check. */
enum clime_err clime_buffer_load(struct clime_db *db, const char *order, int members, struct clime_buffer *out,
                                 struct clime_error *e);
void clime_buffer_free(struct clime_buffer *b); /* and the samples that were not taken */

/* Takes up to n groups; returns how many. *samples are theirs, now the caller's (the array stays the buffer's). */
int clime_buffer_take(struct clime_buffer *b, int n, struct clime_sample ***samples);

#endif
