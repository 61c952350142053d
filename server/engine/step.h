/* Runs one planned step on the model: rows in, sampled tokens and log-probabilities out.
 *
 * Owner: the engine thread, which also owns model, KV memory and scratch. All host and device arrays are planned at
 * open for max_rows = chunk + max_running rows; a step allocates only what it hands over (log-probability lists).
 */
#ifndef CLIME_SERVER_ENGINE_STEP_H
#define CLIME_SERVER_ENGINE_STEP_H

#include "model/model.h"
#include "server/engine/step_arrays.h"
#include "server/engine/step_results.h"
#include "server/schedule/scheduler.h"

struct clime_runner; /* the step's arrays; borrows the model */

/* max_len: the longest sequence in tokens. graph_bs[n_graph_bs]: sizes that decode steps are padded to and replayed at
 * where the device records work (0 of them: never). Errors: CLIME_ERR_LIMIT when memory is exhausted. */
enum clime_err clime_runner_open(struct clime_model *m, const struct clime_sched_options *o, int max_len,
                                 const int *graph_bs, int n_graph_bs, struct clime_runner **out, struct clime_error *e);
void clime_runner_close(struct clime_runner *r);

/* Over several ranks: steps are told to the followers, with what their rows read. Before the first step. */
struct clime_followers;
void clime_runner_lead(struct clime_runner *r, struct clime_followers *f);
/* On a follower: the same rows, which begins when the host arrays of the step before the last are free, and the same
 * logits of them (false: they do not fit). words and copies are the caller's again when it returns. */
enum clime_err clime_runner_follow_rows(struct clime_runner *r, const struct clime_step_shape *shape,
                                        const int32_t *words, const struct clime_page_copy *copies, int n_copies,
                                        struct clime_error *e);
bool clime_runner_follow_logits(struct clime_runner *r, const int32_t *rows, int n);

/* A step is started, drawn, then finished. Before it is finished the next one may be started, when it was planned ahead
 * of this one and this one's mark is not negative; a third may not. */

/* Queues the plan's rows, and its draws where they fit in one block; sets plan->mark. Reads the sequences' pages and
 * tokens now, not later. plan->undrawn: the draws of this step ahead want the tokens of the one before. */
void clime_runner_start(struct clime_runner *r, struct clime_step_plan *plan);
/* Queues the draws that start has left, the tokens before them being known to their sequences now. */
void clime_runner_draw(struct clime_runner *r, struct clime_step_plan *plan);
/* Waits for the oldest started step and fills the results of the plan's items; the caller frees the lists in them. An
 * item whose seq is NULL (it has ended since) gets none. CLIME_ERR_DEVICE: the device is dead. */
enum clime_err clime_runner_finish(struct clime_runner *r, const struct clime_step_plan *plan,
                                   const struct clime_step_results *results, struct clime_error *e);

/* Of a runner that keeps choices (clime_sched_options): which experts the positions of q from `from` on have chosen, as
 * far as they are computed, [n][layers * k]; caller frees. */
int32_t *clime_runner_choices(const struct clime_runner *r, const struct clime_seq *q, int from, int *n);

/* Gives the KV memory back and takes some again at the same address; what it held is lost. No step between the two. */
size_t clime_runner_release_kv(struct clime_runner *r); /* returns its bytes, 0 = it was not there */
enum clime_err clime_runner_take_back_kv(struct clime_runner *r, size_t *bytes, struct clime_error *e);

/* Device memory that a runner takes beside KV: scratch, its own and the operations', and a step's arrays. */
size_t clime_runner_bytes(const struct clime_model *m, const struct clime_sched_options *o, int max_len);

#endif
