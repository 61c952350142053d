/* Ledger: optimizer steps: their samples, order and packing, and their results. */
#ifndef CLIME_TRAINER_LEDGER_STEPS_H
#define CLIME_TRAINER_LEDGER_STEPS_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/sample.h"

struct clime_chosen_step {
    int64_t step; /* from 1: optimizer steps done after this one */
    int64_t rollout;
    int64_t global_batch;
    struct clime_sample **samples;   /* [n] in training order */
    struct clime_estimate *estimate; /* [n] owned */
    int n;
    struct clime_packing packing;
};

struct clime_step_result {
    bool done;
    double loss, grad_norm; /* NaN if not finite */
};

/* Records the samples of all steps of a rollout with order, advantages and packing, the rollout's metrics line and its
 * times so far (perf_line, under the last step; rewritten when all are known) in one durable transaction. Marks their
 * groups done, and the other open groups surplus unless keep_open. CLIME_ERR_INTERNAL: a step already has one of the
 * samples. */
enum clime_err clime_steps_choose(struct clime_ledger *l, const struct clime_chosen_step *plans, int n_plans,
                                  bool keep_open, const char *metrics_line, const char *perf_line,
                                  struct clime_error *e);

/* Records a step of clime-train sft, chosen and done at once: its samples follow from the data and the seed. Stores the
 * packing too. */
enum clime_err clime_step_record(struct clime_ledger *l, const struct clime_chosen_step *plan, double loss,
                                 double grad_norm, const char *stats_json, const char *metrics_line,
                                 struct clime_error *e);

/* The recorded result of a step; done is false if there is none. */
enum clime_err clime_step_result_get(struct clime_db *db, int64_t step, struct clime_step_result *out,
                                     struct clime_error *e);

/* Per-token results of a step. */
struct clime_step_tokens {
    struct clime_sample *const *samples; /* [n] */
    float *const *entropy;               /* [n], [n_response] each */
    int n;
};

/* Records the result of a step, its metrics line and its tokens (NULL = none) in one transaction. */
enum clime_err clime_step_finish(struct clime_ledger *l, int64_t step, double loss, double grad_norm,
                                 const char *stats_json, const char *metrics_line,
                                 const struct clime_step_tokens *tokens, struct clime_error *e);

enum clime_err clime_steps_last(struct clime_db *db, int64_t *step, struct clime_error *e); /* 0 = no step chosen */

/* Reads a chosen step back with its samples; CLIME_ERR_NOT_FOUND if there is none. Free with clime_chosen_step_free and
 * clime_samples_free(samples, n). */
enum clime_err clime_step_load(struct clime_db *db, int64_t step, struct clime_chosen_step *plan,
                               struct clime_step_result *result, struct clime_error *e);
void clime_chosen_step_free(struct clime_chosen_step *p); /* packing and estimates; not the samples */

#endif
