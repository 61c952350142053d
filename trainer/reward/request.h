/* What is asked of a reward and what it gives, and both as JSON. Plain values; any thread. */
#ifndef CLIME_TRAINER_REWARD_REQUEST_H
#define CLIME_TRAINER_REWARD_REQUEST_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"
#include "grade/grade.h"

#define CLIME_REWARD_NAME 512 /* bytes of a type's name, a weighted sum's included */

struct clime_reward_request {
    const char *type;   /* "math", "boxed_math", "math:0.8,format:0.2", ...; metadata's "rm_type" wins; may be NULL */
    bool type_is_final; /* metadata has been asked already */
    struct clime_str prompt;   /* used by command and url only */
    struct clime_str response; /* UTF-8 */
    struct clime_str label;
    struct clime_str metadata; /* JSON object text; empty = none */
    bool prompt_is_json;       /* prompt is JSON text (a list of messages), else plain text */
    bool label_is_json;        /* label is JSON text ("\"42\"", 42, null; empty = null), else plain text */
    uint64_t seed;             /* of the sample; type random is a function of it */
};

void clime_reward_free(struct clime_reward *r); /* its memory; r may be used again */

/* What lies beyond is a fault of who made it, not a reward: it would drown all others in its group's advantages. */
#define CLIME_REWARD_MOST 1e6
/* Turns a reward that is not finite or out of range into an error. An object's value that nobody picked is no reward.
 */
void clime_reward_check_range(struct clime_reward *r);

/* Writes the members "prompt", "response" and "label" of q into the open object, for a command or URL. */
struct clime_jw;
void clime_reward_write_request(struct clime_jw *w, const struct clime_reward_request *q);

/* A number, or true (1, as in Python, where many a reward is a comparison) or false; false with nothing read where the
 * value is neither. */
struct clime_json;
bool clime_reward_read_number(struct clime_json *j, double *value);
/* Makes the reward of a JSON value that a command or URL gave: a number, true or false, or an object with reward_key
 * picked. */
enum clime_err clime_reward_from_json(struct clime_str json, const char *reward_key, struct clime_reward *out);
/* The same for a JSON array of exactly n rewards, for a group. On error out[0].error says why; none of the others is
 * set. */
enum clime_err clime_reward_list_from_json(struct clime_str json, const char *reward_key, int n,
                                           struct clime_reward *out);

#endif
