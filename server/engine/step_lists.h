/* Log-probability lists (clime_ops.list_logp) and sampling masks (clime_ops.sample) of a block of head rows: requests
 * and results. Owner: the engine thread, through the runner.
 */
#ifndef CLIME_SERVER_ENGINE_STEP_LISTS_H
#define CLIME_SERVER_ENGINE_STEP_LISTS_H

#include "kernels/kernels.h"
#include "server/job/job.h"

#define CLIME_LIST_ROOM (CLIME_MAX_TOP_LOGPROBS + CLIME_MAX_CHOSEN_LOGPROBS + 1) /* entries of one list */

struct clime_step_lists {
    struct clime_logp_list *list; /* [size] */
    int size, n, n_entries;       /* lists, and total entries */
};

/* Adds the list of head row `row`; returns the start of its entries, or -1: none requested. id: the prompt token whose
 * rank is wanted; -1 = none. */
int clime_step_lists_add(struct clime_step_lists *l, int row, int V, float inv_temp,
                         const struct clime_logp_options *want, int32_t id);

/* Ids to reserve for the sampling mask of a draw of this output; 0 = none requested. */
int clime_step_mask_room(const struct clime_output *o, int V);
/* Lays out the masks of n draws from place `at` on; mask_at[k] = start, or -1: none wanted. Returns the end. */
int clime_step_masks_place(const struct clime_sampling *s, int n, int at, int *mask_at);
struct clime_sampling_mask *clime_step_mask_take(const struct clime_drawn *d, const int32_t *ids, int room);

/* Builds a list from its entries; the caller frees it. id: as passed to add. */
struct clime_lp_extra *clime_step_lists_take(const struct clime_id_logp *from, int V,
                                             const struct clime_logp_options *want, int32_t id);

#endif
