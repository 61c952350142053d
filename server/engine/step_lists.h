/* Lists of a block of head rows: log-probabilities, what is asked of clime_ops.list_logp and what becomes of its
 * entries; and sampling masks, which clime_ops.sample lists. Owner: the engine thread, through the runner.
 */
#ifndef CLIME_SERVER_ENGINE_STEP_LISTS_H
#define CLIME_SERVER_ENGINE_STEP_LISTS_H

#include "kernels/kernels.h"
#include "server/job/job.h"

#define CLIME_LIST_ROOM (CLIME_MAX_TOP_LOGPROBS + CLIME_MAX_CHOSEN_LOGPROBS + 1) /* entries of one list */

struct clime_step_lists {
    struct clime_logp_list *list; /* [size] */
    int size, n, n_entries;       /* lists, and their entries in all */
};

/* The list of head row `row`; returns where its entries will begin, -1: none is asked for. id: whose rank goes with it,
 * a prompt's token; -1 = none's. */
int clime_step_lists_add(struct clime_step_lists *l, int row, int V, float inv_temp,
                         const struct clime_logp_options *want, int32_t id);

/* Places for the sampling mask of a draw of this output; 0 = none is asked for. */
int clime_step_mask_room(const struct clime_output *o, int V);
/* Where the masks of n draws begin that want them, one behind the other from place `at` on; -1: none is wanted. Returns
 * their end. */
int clime_step_masks_place(const struct clime_sampling *s, int n, int at, int *mask_at);
struct clime_sampling_mask *clime_step_mask_take(const struct clime_drawn *d, const int32_t *ids, int room);

/* What is handed over, from its entries. The caller frees it. id: as it was asked for. */
struct clime_lp_extra *clime_step_lists_take(const struct clime_id_logp *from, int V,
                                             const struct clime_logp_options *want, int32_t id);

#endif
