/* Does a response repeat itself? slime's measure: of a text of more than 10,000 characters the last 10,000 become over
 * ten times smaller when zlib compresses them. Pure. */
#ifndef CLIME_TRAINER_ROLLOUT_REPETITION_H
#define CLIME_TRAINER_ROLLOUT_REPETITION_H

#include <stdbool.h>

bool clime_has_repetition(const char *text); /* UTF-8; NULL = no */

#endif
