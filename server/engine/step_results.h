/* A step's results: for each plan item its drawn tokens and its prompt's log-probabilities. The engine owns the arrays;
 * the reader of a list in them owns and frees it. */
#ifndef CLIME_SERVER_ENGINE_STEP_RESULTS_H
#define CLIME_SERVER_ENGINE_STEP_RESULTS_H

#include "kernels/kernels.h"
#include "server/job/job.h"

struct clime_prompt_logp { /* log-probabilities of prompt tokens first .. first + n */
    int first, n;
    bool bad;                      /* one of them is not finite */
    float *logp;                   /* [n] */
    struct clime_lp_extra **extra; /* [n] or NULL */
};

struct clime_step_draw { /* a sampled token */
    struct clime_drawn drawn;
    uint32_t routing;                 /* hash of the row's routing choices; 0: no experts */
    struct clime_lp_extra *extra;     /* NULL unless requested */
    struct clime_sampling_mask *mask; /* the same */
};

struct clime_step_result {           /* of one plan item */
    int n_draws;                     /* 1 + guessed rows; draw k holds if all guesses */
    struct clime_step_draw *draws;   /* before it are right. Points into the results' draws */
    struct clime_prompt_logp prompt; /* n = 0: none */
};

struct clime_step_results {
    struct clime_step_result *items; /* [max_running] */
    struct clime_step_draw *draws;   /* [max_running] of all items */
};

#endif
