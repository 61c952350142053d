/* Ledger: the questions that a report asks. Read-only; works beside a trainer that is running. */
#ifndef CLIME_TRAINER_LEDGER_SUMMARY_H
#define CLIME_TRAINER_LEDGER_SUMMARY_H

#include "trainer/ledger/db.h"
#include "trainer/sample/turns.h"

struct clime_summary {
    char name[32];
    int64_t seed, created_us, incarnations;
    int64_t rollouts, groups, steps, steps_done;
    int64_t failed, filtered, surplus;                     /* groups that were not used, and why */
    int64_t n_pending, n_completed, n_truncated, n_failed; /* samples */
    int64_t tokens;                                        /* of responses */
    double gap;                               /* greatest log-probability gap of any step; NaN = none measured */
    int64_t gap_tokens, gap_wrong, gap_steps; /* over all steps: compared, not equal; steps with such */
    char sha256[65];                          /* of the newest version, "" = none */
    int64_t version;                          /* -1 = none */
    int64_t last_us;                          /* of the newest event */
};
enum clime_err clime_summary_read(struct clime_db *db, struct clime_summary *out, struct clime_error *e);

/* Mean reward of each finished rollout, in order. The caller frees rewards. */
enum clime_err clime_summary_rewards(struct clime_db *db, double **rewards, int *n, struct clime_error *e);

/* How the turns of the run's sessions went on, over all rollouts that were trained on. */
enum clime_err clime_summary_turns(struct clime_db *db, struct clime_turn_counts *out, struct clime_error *e);

/* Calls fn for every evaluation, by name and step. */
struct clime_eval_point {
    const char *name;
    int64_t step, n_prompts, n_failed;
    double score;
};
enum clime_err clime_summary_evals(struct clime_db *db, void (*fn)(void *arg, const struct clime_eval_point *p),
                                   void *arg, struct clime_error *e);

/* Calls fn for every sample that the steps first..last were trained on, in the order of training. */
struct clime_trained_sample {
    int64_t id;               /* row of samples */
    double reward, advantage; /* NaN = none */
    int64_t n_response;
};
enum clime_err clime_summary_trained(struct clime_db *db, int64_t first, int64_t last,
                                     void (*fn)(void *arg, const struct clime_trained_sample *s), void *arg,
                                     struct clime_error *e);

/* The prompt and the response of one sample; the caller frees them. NULL: they are not kept. */
enum clime_err clime_summary_text(struct clime_db *db, int64_t id, char **prompt, char **response,
                                  struct clime_error *e);

/* One rewarded sample of the newest rollout, the best or the worst: prompt, response, reward. Strings are the caller's;
 * prompt NULL when there is none. */
enum clime_err clime_summary_sample(struct clime_db *db, bool best, char **prompt, char **response, double *reward,
                                    struct clime_error *e);

#endif
