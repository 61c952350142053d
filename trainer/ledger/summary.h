/* Ledger: queries for reports. Read-only; safe while a trainer runs. */
#ifndef CLIME_TRAINER_LEDGER_SUMMARY_H
#define CLIME_TRAINER_LEDGER_SUMMARY_H

#include "trainer/ledger/db.h"
#include "trainer/sample/turns.h"

struct clime_summary {
    char name[32];
    int64_t seed, created_us, incarnations;
    int64_t rollouts, groups, steps, steps_done;
    int64_t failed, filtered, surplus;                     /* unused groups by cause */
    int64_t n_pending, n_completed, n_truncated, n_failed; /* samples */
    int64_t tokens;                                        /* of responses */
    double gap;                               /* largest log-probability gap of any step; NaN = none measured */
    int64_t gap_tokens, gap_wrong, gap_steps; /* over all steps: tokens compared, unequal; steps with unequal ones */
    char sha256[65];                          /* of the newest version, "" = none */
    int64_t version;                          /* -1 = none */
    int64_t last_us;                          /* of the newest event */
};
enum clime_err clime_summary_read(struct clime_db *db, struct clime_summary *out, struct clime_error *e);

/* Mean reward of each finished rollout, in order. The caller frees rewards. */
enum clime_err clime_summary_rewards(struct clime_db *db, double **rewards, int *n, struct clime_error *e);

/* Turn counts of the run's sessions over all rollouts trained on. */
enum clime_err clime_summary_turns(struct clime_db *db, struct clime_turn_counts *out, struct clime_error *e);

/* Calls fn for every evaluation, by name and step. */
struct clime_eval_point {
    const char *name;
    int64_t step, n_prompts, n_failed;
    double score;
};
enum clime_err clime_summary_evals(struct clime_db *db, void (*fn)(void *arg, const struct clime_eval_point *p),
                                   void *arg, struct clime_error *e);

/* Calls fn for every sample of the steps first..last, in training order. */
struct clime_trained_sample {
    int64_t id;               /* row of samples */
    double reward, advantage; /* NaN = none */
    int64_t n_response;
};
enum clime_err clime_summary_trained(struct clime_db *db, int64_t first, int64_t last,
                                     void (*fn)(void *arg, const struct clime_trained_sample *s), void *arg,
                                     struct clime_error *e);

/* Prompt and response of one sample; the caller frees them. NULL: no longer stored. */
enum clime_err clime_summary_text(struct clime_db *db, int64_t id, char **prompt, char **response,
                                  struct clime_error *e);

/* The best or worst rewarded sample of the newest rollout: prompt, response, reward. The caller frees the strings;
 * prompt is NULL if there is none. */
enum clime_err clime_summary_sample(struct clime_db *db, bool best, char **prompt, char **response, double *reward,
                                    struct clime_error *e);

#endif
