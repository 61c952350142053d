/* Draws from a block of head rows: which tokens, with what is asked beside them, come from the logits to the host.
 *
 * A draw is queued; its results come in one transfer, by a mark, 0 or 1, for two steps may be in flight: what came by a
 * mark lasts until the step after the next is queued. The tokens stay on the device as well, where the next step's rows
 * may read them. Lists of log-probabilities and sampling masks come with the tokens. Owner: the engine thread, through
 * the runner.
 */
#ifndef CLIME_SERVER_ENGINE_STEP_DRAWS_H
#define CLIME_SERVER_ENGINE_STEP_DRAWS_H

#include "model/model.h"
#include "server/engine/step_lists.h"
#include "server/engine/step_results.h"
#include "server/schedule/scheduler.h"

/* The k-th draw of an item of the plan. */
struct clime_draw_of {
    int item, k;
};

struct clime_step_draws {
    struct clime_model *m;
    const struct clime_work *work; /* the block: its logits and lse, and of a model with experts what was chosen */
    /* what it gives: [max_out] drawn tokens, of a model with experts [max_out] of what was chosen, then the entries of
     * [max_out] lists of log-probabilities, then the ids of [max_out] sampling masks, all without gaps */
    struct clime_drawn *h_drawn[2], *d_drawn;
    struct clime_step_lists lists;   /* of the block */
    int *list_at[2];                 /* [max_out] where the list of row k begins; -1: it has none */
    int *mask_at[2];                 /* [max_out] where its mask begins, in words behind the drawn tokens; -1: none */
    struct clime_sampling *sampling; /* [max_out] */
};

/* Bytes that it takes on the device. */
size_t clime_step_draws_bytes(const struct clime_model *m, int max_out);
/* For blocks of work->max_out rows; model and work are borrowed. CLIME_ERR_LIMIT; close also then. */
enum clime_err clime_step_draws_open(struct clime_step_draws *d, struct clime_model *m, const struct clime_work *work,
                                     struct clime_error *e);
void clime_step_draws_close(struct clime_step_draws *d);

/* The temperature's inverse that an item draws with. */
float clime_step_inv_temp(const struct clime_step_item *item);

/* Draws from the n rows of logits, which are those of draws[]; tokens and lists come by the mark `turn`. */
void clime_step_draws_queue(struct clime_step_draws *d, const struct clime_step_plan *plan,
                            const struct clime_draw_of *draws, int n, int turn);
/* The mark alone, on ranks that draw nothing. */
void clime_step_draws_mark(struct clime_step_draws *d, int turn);
/* Waits for the n tokens that come by a mark, for the results of the items that they are of. */
enum clime_err clime_step_draws_take(struct clime_step_draws *d, const struct clime_step_plan *plan, int mark,
                                     const struct clime_draw_of *draws, int n, const struct clime_step_results *results,
                                     struct clime_error *e);

/* Waits for what is queued; extra[n] (NULL: not wanted) gets the lists of the block's n rows, each at inv_temp[n], of
 * the prompt's tokens ids[n]. */
enum clime_err clime_step_draws_lists(struct clime_step_draws *d, const struct clime_logp_options *lp,
                                      const float *inv_temp, const int32_t *ids, int n, int turn,
                                      struct clime_lp_extra **extra, struct clime_error *e);

#endif
