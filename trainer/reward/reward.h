/* Rewards: a sample's response and the label of its prompt in, a number (or a JSON object of numbers) out.
 *
 * Two ways in:
 *   - clime_reward_grade: built-in functions on the calling thread. Pure, thread-safe, bounded in steps and memory
 *     whatever the text.
 *   - clime_rewarder: a few worker threads in front of all types, the ones outside this process (command, url)
 *     included, with a deadline per call; results come back in the order asked.
 *
 * Nouns: a *type* is a row of the table in reward.c, named as in --rm-type ("math"); the prefix "boxed_" replaces the
 * response by the content of its last \boxed{} first; "a:0.8,b:0.2" is a weighted sum (mixture.h). A *label* is the
 * JSON value under --label-key. The *reward* is a number; or an object, of which --reward-key picks one member. Failure
 * is a state, never reward 0: error.code says which (TIMEOUT, UNAVAILABLE, INPUT, ...) and error.msg in words.
 */
#ifndef CLIME_TRAINER_REWARD_REWARD_H
#define CLIME_TRAINER_REWARD_REWARD_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

/* The longest response, label or metadata that is graded; CLIME_ERR_LIMIT past it. */
#define CLIME_REWARD_MAX_TEXT ((size_t)4 << 20)
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

struct clime_reward {
    double value;             /* NaN with an object and no --reward-key */
    char *object;             /* the whole object as JSON text when the reward is one, else NULL; owned */
    bool is_sum;              /* object is a weighted sum's: {"reward": value, "parts": {...}} */
    struct clime_error error; /* code CLIME_OK when there is a reward */
};

void clime_reward_free(struct clime_reward *r); /* its memory; r may be used again */

/* What lies beyond is a fault of who made it, not a reward: it would drown all others in its group's advantages. */
#define CLIME_REWARD_MOST 1e6
/* Turns a reward that is not finite or out of range into an error. An object's value that nobody picked is no reward.
 */
void clime_reward_check_range(struct clime_reward *r);

/* One row a type. To add one: a file in graders/ with the function, its line in graders.h, its row in reward.c. */
struct clime_grader_input;
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

/* CLIME_OK when the name is a type or a weighted sum of types (mixture.h). */
enum clime_err clime_reward_check(const char *name, struct clime_error *e);

/* Grades with built-in types. reward_key may be NULL. Returns out->error.code. */
enum clime_err clime_reward_grade(const struct clime_reward_request *q, const char *reward_key,
                                  struct clime_reward *out);

/* The name of the type that holds for q (metadata's rm_type, else q->type), copied. */
enum clime_err clime_reward_type_of(const struct clime_reward_request *q, char out[CLIME_REWARD_NAME],
                                    struct clime_error *e);

/* Writes the members "prompt", "response" and "label" of q into the open object, for a command or URL. */
struct clime_jw;
void clime_reward_write_request(struct clime_jw *w, const struct clime_reward_request *q);

/* Makes the reward of a JSON value that a command or URL gave: a number, or an object with reward_key picked. */
enum clime_err clime_reward_from_json(struct clime_str json, const char *reward_key, struct clime_reward *out);
/* The same for a JSON array of exactly n rewards, for a group. On error out[0].error says why; none of the others is
 * set. */
enum clime_err clime_reward_list_from_json(struct clime_str json, const char *reward_key, int n,
                                           struct clime_reward *out);

#endif
