/* The parts of the parser of `clime-train rl`: trainer/options/rl_options.c puts them together. The rows are called
 * before the words are read, the rest after. */
#ifndef CLIME_TRAINER_OPTIONS_RL_OPTIONS_INT_H
#define CLIME_TRAINER_OPTIONS_RL_OPTIONS_INT_H

#include "trainer/options/rl_options.h"

struct clime_rl_given { /* by the user: options whose absence means "as another option" */
    bool tis_clip_low, eps_clip_high, eps_clip_c, critic_lr, value_clip, eval_temperature, eval_top_p, eval_top_k,
        eval_len, eval_ctx, eval_min, eval_prompt_len;
    bool max_prompt, num_servers;
    const struct clime_opt *table; /* all n rows, with what was parsed */
    int n;
};

/* Rows of the table, in the order of the help: what makes samples (rl_options_samples.c), what learns from them
 * (rl_options_learning.c). They return their number. */
int clime_rl_sample_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g);
int clime_rl_learning_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g);

/* rl_derive.c: refuses what lacks or contradicts, then fills in what was not given. */
enum clime_err clime_rl_derive(struct clime_rl_options *o, const struct clime_rl_given *g, struct clime_error *e);

/* rl_rules.c: refuses what its rows say; those without effect, a line each, for free; the rows as text. */
enum clime_err clime_rl_rules_check(const struct clime_rl_given *g, struct clime_error *e);
char *clime_rl_rules_idle(const struct clime_rl_given *g);
const char *clime_rl_rules_text(void);

/* rl_check.c: sampling and --async, of which it sets what --fully-async implies. */
enum clime_err clime_rl_check_sampling(struct clime_rl_options *o, const struct clime_rl_given *g,
                                       struct clime_error *e);
/* Once the steps of a rollout are known: --max-staleness. */
enum clime_err clime_rl_check_staleness(const struct clime_rl_options *o, struct clime_error *e);
/* Finds the estimator; refuses what does not go together with it, or among losses and corrections. */
enum clime_err clime_rl_check_algorithm(struct clime_rl_options *o, const struct clime_rl_given *g,
                                        struct clime_error *e);

/* rl_decides.c: those of the n rows that decide the weights, with their values, as a JSON object for free. */
char *clime_rl_deciding_options(const struct clime_rl_options *o, const struct clime_opt *t, int n);

#endif
