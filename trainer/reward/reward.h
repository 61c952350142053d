/* Rewards: map a sample's response and its prompt's label to a number (or a JSON object of numbers).
 *
 * Two entry points:
 *   - clime_reward_grade: built-in functions on the calling thread. Pure, thread-safe, bounded in steps and memory for
 *     any text.
 *   - clime_rewarder: a few worker threads for all types, including external ones (command, url), with a deadline per
 *     call; results return in submission order.
 *
 * Nouns: a *type* is a row of the table in types.c, named as in --rm-type ("math"); the prefix "boxed_" first replaces
 * the response by the content of its last \boxed{}; "a:0.8,b:0.2" is a weighted sum (mixture.h). A *label* is the JSON
 * value under --label-key. The *reward* is a number, or an object of which --reward-key picks one member. Failure is a
 * state, never reward 0: error.code has its kind (TIMEOUT, UNAVAILABLE, INPUT, ...), error.msg the message. */
#ifndef CLIME_TRAINER_REWARD_REWARD_H
#define CLIME_TRAINER_REWARD_REWARD_H

#include "trainer/reward/request.h"
#include "trainer/reward/types.h"

/* CLIME_OK when the name is a type or a weighted sum of types (mixture.h). */
enum clime_err clime_reward_check(const char *name, struct clime_error *e);

/* Grades with built-in types. reward_key may be NULL. Returns out->error.code. */
enum clime_err clime_reward_grade(const struct clime_reward_request *q, const char *reward_key,
                                  struct clime_reward *out);

/* Copies the name of the type for q (metadata's rm_type, else q->type). */
enum clime_err clime_reward_type_of(const struct clime_reward_request *q, char out[CLIME_REWARD_NAME],
                                    struct clime_error *e);

#endif
