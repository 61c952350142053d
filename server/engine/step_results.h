/* What a step gives: for each item of its plan the tokens that it drew, and log-probabilities of its prompt. The arrays
 * are the engine's; lists in them are handed over, and freed by whoever takes them. */
#ifndef CLIME_SERVER_ENGINE_STEP_RESULTS_H
#define CLIME_SERVER_ENGINE_STEP_RESULTS_H

#include "kernels/kernels.h"
#include "server/job/job.h"

struct clime_prompt_logp { /* log-probabilities of prompt tokens first .. first + n */
    int first, n;
    bool bad;                      /* one of them is no finite number */
    float *logp;                   /* [n] */
    struct clime_lp_extra **extra; /* [n] or NULL */
};

struct clime_step_draw { /* a token that was sampled */
    struct clime_drawn drawn;
    uint32_t routing;                 /* what the routers chose for the row that drew it; 0: it has none */
    struct clime_lp_extra *extra;     /* NULL unless asked for */
    struct clime_sampling_mask *mask; /* the same */
};

struct clime_step_result {           /* of one plan item */
    int n_draws;                     /* one, and one more for each guessed row: each is what follows if all guesses */
    struct clime_step_draw *draws;   /* before it are right; they lie in the results' array of draws */
    struct clime_prompt_logp prompt; /* n = 0: none */
};

struct clime_step_results {
    struct clime_step_result *items; /* [max_running] */
    struct clime_step_draw *draws;   /* [max_running] of all items */
};

#endif
