/* Ledger: optimizer steps: which samples, in which order, packed how; and what came out. */
#ifndef CLIME_TRAINER_LEDGER_STEPS_H
#define CLIME_TRAINER_LEDGER_STEPS_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/sample.h"

struct clime_chosen_step {
    int64_t step; /* optimizer steps done when this one is done: the first is 1 */
    int64_t rollout;
    int64_t global_batch;
    struct clime_sample **samples;   /* [n] in order of training */
    struct clime_estimate *estimate; /* [n] owned */
    int n;
    struct clime_packing packing;
};

struct clime_step_result {
    bool done;
    double loss, grad_norm; /* NaN where they were not finite */
};

/* Chooses the samples of all steps of a rollout and records order, advantages and packing, with the rollout's line of
 * metrics and what is known of its times (the line of the last step; it is written anew when all of them are): one
 * durable transaction. Their groups are done; the other open groups stay so with keep_open, else they are
 * surplus. A sample that a step holds already is an error (CLIME_ERR_INTERNAL). */
enum clime_err clime_steps_choose(struct clime_ledger *l, const struct clime_chosen_step *plans, int n_plans,
                                  bool keep_open, const char *metrics_line, const char *perf_line,
                                  struct clime_error *e);

/* A step of clime-train sft, chosen and done at once: its samples follow from the data and the seed. The packing is
 * recorded too. */
enum clime_err clime_step_record(struct clime_ledger *l, const struct clime_chosen_step *plan, double loss,
                                 double grad_norm, const char *stats_json, const char *metrics_line,
                                 struct clime_error *e);

/* What is recorded of a step's result; done is false where there is none. */
enum clime_err clime_step_result_get(struct clime_db *db, int64_t step, struct clime_step_result *out,
                                     struct clime_error *e);

/* What a step found of each token, beside its samples. */
struct clime_step_tokens {
    struct clime_sample *const *samples; /* [n] */
    float *const *entropy;               /* [n], [n_response] each */
    int n;
};

/* Records the result of a step, its line of metrics and its tokens (NULL = none) in one transaction. */
enum clime_err clime_step_finish(struct clime_ledger *l, int64_t step, double loss, double grad_norm,
                                 const char *stats_json, const char *metrics_line,
                                 const struct clime_step_tokens *tokens, struct clime_error *e);

enum clime_err clime_steps_last(struct clime_db *db, int64_t *step, struct clime_error *e); /* 0 = none chosen */

/* Reads a chosen step back, samples and all; CLIME_ERR_NOT_FOUND when there is none. Free with clime_chosen_step_free
 * and clime_samples_free(samples, n). */
enum clime_err clime_step_load(struct clime_db *db, int64_t step, struct clime_chosen_step *plan,
                               struct clime_step_result *result, struct clime_error *e);
void clime_chosen_step_free(struct clime_chosen_step *p); /* packing and estimates; not the samples */

#endif
