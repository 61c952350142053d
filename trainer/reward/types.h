/* Table of reward types. Any thread; no state. */
#ifndef CLIME_TRAINER_REWARD_TYPES_H
#define CLIME_TRAINER_REWARD_TYPES_H

#include "trainer/reward/request.h"

/* One row per type. To add one: its function in a file in grade/, a line in grade/grade.h, a row in types.c. */
struct clime_reward_type {
    const char *name;
    const char *help;
    /* Sets out->value or out->object; CLIME_ERR_INPUT when label or metadata do not suit the type. NULL for types that
     * only a rewarder serves (command, url). */
    enum clime_err (*grade)(const struct clime_grader_input *in, struct clime_reward *out);
};
/* Finds a type, without the prefix "boxed_" (*boxed: present); NULL and an error that lists the names. */
const struct clime_reward_type *clime_reward_find(const char *name, bool *boxed, struct clime_error *e);
void clime_reward_describe(struct clime_buf *out); /* one "name  help" per line, for --help and the manual */

#endif
