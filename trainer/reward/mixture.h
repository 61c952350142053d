/* Weighted sums of reward types: "math:0.8,format:0.2", "dapo.score:0.5,gsm8k:0.5".
 *
 * A part is a type, with an optional prefix boxed_, ".member" if its reward is an object, and ":weight". Every part is
 * graded; the sum is the reward, with {"reward": sum, "parts": {"math": 1, ...}} as its object. If a part fails the
 * whole fails: failure is a state, never a smaller sum. Pure; any thread. */
#ifndef CLIME_TRAINER_REWARD_MIXTURE_H
#define CLIME_TRAINER_REWARD_MIXTURE_H

#include "trainer/reward/request.h"

#define CLIME_MIXTURE_PARTS 16

struct clime_mixture_part {
    char name[80];          /* as written, without the weight: the part's name in the object and in metrics */
    char type[64], key[64]; /* key "" = none */
    double weight;
};

/* Parses a type's name; returns the number of parts, 0 for a plain name (no colon), -1 with an error for a bad weight,
 * name or type. */
int clime_mixture_read(const char *name, struct clime_mixture_part out[CLIME_MIXTURE_PARTS], struct clime_error *e);

/* Grades q with a type that is not a sum; key may be NULL. */
typedef enum clime_err clime_grade_one(void *arg, const struct clime_reward_request *q, const char *key,
                                       struct clime_reward *out);
enum clime_err clime_mixture_grade(const struct clime_mixture_part *parts, int n, const struct clime_reward_request *q,
                                   clime_grade_one *one, void *arg, struct clime_reward *out);

#endif
