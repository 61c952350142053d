/* Graders by name: input and reward. trainer/reward has the table of reward types.
 *
 * A grader gets the label as Python prints it, because the published verdicts come from str(label). All functions are
 * pure and run on any thread.
 */
#ifndef CLIME_GRADE_GRADE_H
#define CLIME_GRADE_GRADE_H

#include "common/json/scan.h"
#include "common/str.h"

/* The longest response, label or metadata graded; CLIME_ERR_LIMIT above. */
#define CLIME_REWARD_MAX_TEXT ((size_t)4 << 20)

struct clime_grader_input {
    struct clime_str response;
    enum clime_json_kind label_kind; /* ARRAY and OBJECT keep their JSON text */
    struct clime_str label;          /* a string's characters, a number as Python prints it, "True", "None" */
    bool label_is_falsy;             /* null, false, 0, "" and empty containers */
    struct clime_str metadata;       /* JSON object text or empty */
    uint64_t seed;
};

struct clime_reward {
    double value;             /* NaN for an object without --reward-key */
    char *object;             /* the reward's JSON object, when it is one, else NULL; owned */
    bool is_sum;              /* object is that of a weighted sum: {"reward": value, "parts": {...}} */
    struct clime_error error; /* code CLIME_OK when there is a reward */
};

enum clime_err clime_grade_exact(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_random(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_none(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_math(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_math_verify(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_deepscaler(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_dapo(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_dapo_strict(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_f1(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_format(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_gsm8k(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_countdown(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_instructions(const struct clime_grader_input *in, struct clime_reward *out);
enum clime_err clime_grade_gpqa(const struct clime_grader_input *in, struct clime_reward *out);

#endif
