/* Runs one planned step on the model: rows in, sampled tokens and log-probabilities out.
 *
 * Owner: the engine thread, which also owns model, KV memory and scratch. All host and device arrays are planned at
 * open for max_rows = chunk + max_running rows; a step allocates only results (log-probability lists).
 */
#ifndef CLIME_SERVER_ENGINE_STEP_H
#define CLIME_SERVER_ENGINE_STEP_H

#include "model/model.h"
#include "server/engine/step_arrays.h"
#include "server/engine/step_results.h"
#include "server/schedule/scheduler.h"

struct clime_runner; /* the step's arrays; borrows the model */

/* max_len: the longest sequence in tokens. graph_bs[n_graph_bs]: batch sizes that decode steps are padded to and
 * replayed at, on devices that record graphs (0 of them: never). Errors: CLIME_ERR_LIMIT when memory is exhausted. */
enum clime_err clime_runner_open(struct clime_model *m, const struct clime_sched_options *o, int max_len,
                                 const int *graph_bs, int n_graph_bs, struct clime_runner **out, struct clime_error *e);
void clime_runner_close(struct clime_runner *r);

/* Over several ranks: sends each step and its arrays to the followers. Call before the first step. */
struct clime_followers;
void clime_runner_lead(struct clime_runner *r, struct clime_followers *f);
/* On a follower: runs the same rows, once the host arrays of the step before the last are free, then the same logits
 * (false: they do not fit). words and copies are not used after it returns. */
enum clime_err clime_runner_follow_rows(struct clime_runner *r, const struct clime_step_shape *shape,
                                        const int32_t *words, const struct clime_page_copy *copies, int n_copies,
                                        struct clime_error *e);
bool clime_runner_follow_logits(struct clime_runner *r, const int32_t *rows, int n);

/* A step is started, drawn, then finished. The next one may be started before that, if it was planned ahead and this
 * one's mark is not negative. At most two steps are in flight. */

/* Queues the plan's rows, and its draws where they fit in one block; sets plan->mark. Reads the sequences' pages and
 * tokens now, not later. plan->undrawn: this step's draws need the tokens of the step before. */
void clime_runner_start(struct clime_runner *r, struct clime_step_plan *plan);
/* Queues the draws that start left out; the tokens before them are known to their sequences now. */
void clime_runner_draw(struct clime_runner *r, struct clime_step_plan *plan);
/* Waits for the oldest started step and fills the results of the plan's items; the caller frees the lists in them. An
 * item whose seq is NULL (ended meanwhile) gets none. CLIME_ERR_DEVICE: the device is dead. */
enum clime_err clime_runner_finish(struct clime_runner *r, const struct clime_step_plan *plan,
                                   const struct clime_step_results *results, struct clime_error *e);

/* With clime_sched_options.choices: the experts chosen at q's computed positions from `from` on, [n][layers * k]. The
 * caller frees them. */
int32_t *clime_runner_choices(const struct clime_runner *r, const struct clime_seq *q, int from, int *n);

/* Frees the KV memory, and allocates it again at the same address; its contents are lost. No step in between. */
size_t clime_runner_release_kv(struct clime_runner *r); /* returns bytes freed, 0 = was free already */
enum clime_err clime_runner_take_back_kv(struct clime_runner *r, size_t *bytes, struct clime_error *e);

/* Device memory of a runner besides KV: its own and the operations' scratch, and a step's arrays. */
size_t clime_runner_bytes(const struct clime_model *m, const struct clime_sched_options *o, int max_len);

#endif
