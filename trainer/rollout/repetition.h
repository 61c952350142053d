/* Repetition check of a response. slime's measure: the text is over 10,000 characters and zlib compresses the last
 * 10,000 more than tenfold. Pure. */
#ifndef CLIME_TRAINER_ROLLOUT_REPETITION_H
#define CLIME_TRAINER_ROLLOUT_REPETITION_H

#include <stdbool.h>

bool clime_has_repetition(const char *text); /* UTF-8; NULL = no */

#endif
