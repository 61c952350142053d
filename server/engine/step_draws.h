/* Draws from a block of head rows: samples tokens and copies them to the host with their log-probability lists and
 * sampling masks.
 *
 * A draw is queued; its results arrive in one transfer under a mark, 0 or 1, since two steps may be in flight. They
 * stay valid until the step after the next is queued. The tokens stay on the device too, where the next step's rows may
 * read them. Owner: the engine thread, through the runner.
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
    const struct clime_work *work; /* the block: logits, lse and, with experts, routing hashes */
    /* results, without gaps: [max_out] drawn tokens, with experts [max_out] routing hashes, then the entries of
     * [max_out] log-probability lists, then the ids of [max_out] sampling masks */
    struct clime_drawn *h_drawn[2], *d_drawn;
    struct clime_step_lists lists;   /* of the block */
    int *list_at[2];                 /* [max_out] start of row k's list; -1: none */
    int *mask_at[2];                 /* [max_out] start of row k's mask, in words after the drawn tokens; -1: none */
    struct clime_sampling *sampling; /* [max_out] */
};

/* Device memory in bytes. */
size_t clime_step_draws_bytes(const struct clime_model *m, int max_out);
/* For blocks of work->max_out rows; model and work are borrowed. CLIME_ERR_LIMIT. Close it also after an error. */
enum clime_err clime_step_draws_open(struct clime_step_draws *d, struct clime_model *m, const struct clime_work *work,
                                     struct clime_error *e);
void clime_step_draws_close(struct clime_step_draws *d);

/* 1 / temperature of an item's draws. */
float clime_step_inv_temp(const struct clime_step_item *item);

/* Queues draws from n rows of logits, row k for draws[k]; tokens and lists arrive under mark `turn`. */
void clime_step_draws_queue(struct clime_step_draws *d, const struct clime_step_plan *plan,
                            const struct clime_draw_of *draws, int n, int turn);
/* Sets the mark alone, on ranks that draw nothing. */
void clime_step_draws_mark(struct clime_step_draws *d, int turn);
/* Waits for the n tokens under a mark and stores them in the results of their items. */
enum clime_err clime_step_draws_take(struct clime_step_draws *d, const struct clime_step_plan *plan, int mark,
                                     const struct clime_draw_of *draws, int n, const struct clime_step_results *results,
                                     struct clime_error *e);

/* Waits for the queue. extra[n] (NULL: not wanted) gets the lists of the block's n rows, at inv_temp[n], for the prompt
 * tokens ids[n]. */
enum clime_err clime_step_draws_lists(struct clime_step_draws *d, const struct clime_logp_options *lp,
                                      const float *inv_temp, const int32_t *ids, int n, int turn,
                                      struct clime_lp_extra **extra, struct clime_error *e);

#endif
