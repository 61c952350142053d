/* Reward requests and results, and both as JSON. Plain values; any thread. */
#ifndef CLIME_TRAINER_REWARD_REQUEST_H
#define CLIME_TRAINER_REWARD_REQUEST_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"
#include "grade/grade.h"

#define CLIME_REWARD_NAME 512 /* bytes of a type's name, or a weighted sum's */

struct clime_reward_request {
    const char *type;   /* "math", "boxed_math", "math:0.8,format:0.2", ...; metadata's "rm_type" wins; may be NULL */
    bool type_is_final; /* metadata was checked already */
    struct clime_str prompt;   /* used only by command and url */
    struct clime_str response; /* UTF-8 */
    struct clime_str label;
    struct clime_str metadata; /* JSON object text; empty = none */
    bool prompt_is_json;       /* prompt is JSON text (a list of messages), else plain text */
    bool label_is_json;        /* label is JSON text ("\"42\"", 42, null; empty = null), else plain text */
    uint64_t seed;             /* of the sample; type random is a function of it */
};

void clime_reward_free(struct clime_reward *r); /* frees its memory; r is reusable */

/* Larger magnitudes are bugs, not rewards: one would swamp its group's advantages. */
#define CLIME_REWARD_MOST 1e6
/* Turns a non-finite or out-of-range reward into an error. An object without a picked value has no reward. */
void clime_reward_check_range(struct clime_reward *r);

/* Writes q's members "prompt", "response" and "label" into the open object, for a command or URL. */
struct clime_jw;
void clime_reward_write_request(struct clime_jw *w, const struct clime_reward_request *q);

/* Reads a number, or true (1, as in Python, where many rewards are comparisons) or false; returns false, reading
 * nothing, for other values. */
struct clime_json;
bool clime_reward_read_number(struct clime_json *j, double *value);
/* Converts a JSON value from a command or URL: a number, true or false, or an object with reward_key picked. */
enum clime_err clime_reward_from_json(struct clime_str json, const char *reward_key, struct clime_reward *out);
/* The same for a JSON array of exactly n rewards, of a group. On error only out[0] is set, with the reason in error. */
enum clime_err clime_reward_list_from_json(struct clime_str json, const char *reward_key, int n,
                                           struct clime_reward *out);

#endif
