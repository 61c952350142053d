/* The table of reward types. Any thread; no state. */
#ifndef CLIME_TRAINER_REWARD_TYPES_H
#define CLIME_TRAINER_REWARD_TYPES_H

#include "trainer/reward/request.h"

/* One row a type. To add one: a file in grade/ with the function, its line in grade/grade.h, its row in types.c. */
struct clime_reward_type {
    const char *name;
    const char *help;
    /* Sets out->value or out->object; CLIME_ERR_INPUT when label or metadata is not what the type needs. NULL for
     * the types that a rewarder alone can serve (command, url). */
    enum clime_err (*grade)(const struct clime_grader_input *in, struct clime_reward *out);
};
/* The type of a request, the prefix "boxed_" taken off (*boxed tells); NULL and an error that lists the names. */
const struct clime_reward_type *clime_reward_find(const char *name, bool *boxed, struct clime_error *e);
void clime_reward_describe(struct clime_buf *out); /* "name  help" a line, for --help and the manual */

#endif
