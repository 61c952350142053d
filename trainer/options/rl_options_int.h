/* Internals of the parser of `clime-train rl`, combined by trainer/options/rl_options.c. Functions for rows are called
 * before parsing, the rest after. */
#ifndef CLIME_TRAINER_OPTIONS_RL_OPTIONS_INT_H
#define CLIME_TRAINER_OPTIONS_RL_OPTIONS_INT_H

#include "trainer/options/rl_options.h"

struct clime_rl_given { /* set by the user: options whose default is another option's value */
    bool tis_clip_low, eps_clip_high, eps_clip_c, critic_lr, value_clip, eval_temperature, eval_top_p, eval_top_k,
        eval_len, eval_ctx, eval_min, eval_prompt_len;
    bool max_prompt, num_servers;
    const struct clime_opt *table; /* all n rows, with parsed values */
    int n;
};

/* Table rows, in order of the help: sampling (rl_options_samples.c), learning (rl_options_learning.c). Return their
 * number. */
int clime_rl_sample_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g);
int clime_rl_learning_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g);

/* rl_derive.c: refuses missing or contradictory options, then sets derived values. */
enum clime_err clime_rl_derive(struct clime_rl_options *o, const struct clime_rl_given *g, struct clime_error *e);

/* rl_rules.c. check: refuses what the rules forbid. idle: options without effect, a line each; the caller frees it. */
enum clime_err clime_rl_rules_check(const struct clime_rl_given *g, struct clime_error *e);
char *clime_rl_rules_idle(const struct clime_rl_given *g);
const char *clime_rl_rules_text(void);

/* rl_check.c: checks sampling and --async, and sets what --fully-async implies. */
enum clime_err clime_rl_check_sampling(struct clime_rl_options *o, const struct clime_rl_given *g,
                                       struct clime_error *e);
/* Checks --max-staleness; call when the steps of a rollout are known. */
enum clime_err clime_rl_check_staleness(const struct clime_rl_options *o, struct clime_error *e);
/* Finds the estimator; refuses options that conflict with it, and conflicts among losses and corrections. */
enum clime_err clime_rl_check_algorithm(struct clime_rl_options *o, const struct clime_rl_given *g,
                                        struct clime_error *e);

/* rl_decides.c: the rows that affect the weights, with their values, as a JSON object; the caller frees it. */
char *clime_rl_deciding_options(const struct clime_rl_options *o, const struct clime_opt *t, int n);

#endif
