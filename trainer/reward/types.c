/* Table of reward types (types.h). */
#include "trainer/reward/types.h"

#include <string.h>

#include "grade/grade.h"

static const struct clime_reward_type TYPES[] = {
    {"exact", "1 when response and label are the same text, white space at both ends aside", clime_grade_exact},
    {"math", "1 when the last \\boxed{} equals the label: MATH normalisation or the algebra rule", clime_grade_math},
    {"math_verify", "1 when the answer found in the response equals the label as mathematics", clime_grade_math_verify},
    {"deepscaler", "math on the text after </think> or ###Response; 0 without either", clime_grade_deepscaler},
    {"dapo", "object {score: 1|-1, acc, pred} from the last \"Answer:\" line; integer labels", clime_grade_dapo},
    {"dapo_strict", "the same from the last \\boxed{} of the last 100 characters", clime_grade_dapo_strict},
    {"f1", "SQuAD's word overlap with the label, 0 to 1", clime_grade_f1},
    {"gpqa", "1 when the chosen letter, or failing one the text, is the right choice", clime_grade_gpqa},
    {"format", "1 when the response is a <think> block and an <answer> block", clime_grade_format},
    {"gsm8k", "1 when the number behind the last #### is the label", clime_grade_gsm8k},
    {"countdown", "1 when <answer> reaches the target with every number once, 0.1 when it does not",
     clime_grade_countdown},
    {"ifeval", "1 when all instructions of metadata.instruction_id_list are followed", clime_grade_instructions},
    {"ifbench", "the same: both know the instructions of IFEval and of IFBench", clime_grade_instructions},
    {"random", "0 or 1, by the sample's seed", clime_grade_random},
    {"none", "0 for every response: with --use-opd the teacher alone decides", clime_grade_none},
    {"command", "JSON lines to and from a child process (--rm-command)", NULL},
    {"custom", "a function of a shared library (--custom-rm-path, trainer/plugin/plugin.h)", NULL},
    {"url", "POST {prompt, response, label} to --rm-url", NULL},
    {"remote_rm", "slime's name for url", NULL},
};

const struct clime_reward_type *clime_reward_find(const char *name, bool *boxed, struct clime_error *e) {
    const char *base = name ? name : "";
    *boxed = strncmp(base, "boxed_", 6) == 0;
    if (*boxed) base += 6;
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++)
        if (strcmp(TYPES[i].name, base) == 0) return &TYPES[i];
    struct clime_buf names;
    clime_buf_init(&names, 1024);
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++) clime_buf_printf(&names, "%s%s", i ? ", " : "", TYPES[i].name);
    if (!base[0])
        clime_fail(e, CLIME_ERR_INPUT, "no reward type: give --rm-type (%s)", names.data);
    else
        clime_fail(e, CLIME_ERR_INPUT, "unknown reward type \"%.64s\"; there are %s", name, names.data);
    clime_buf_free(&names);
    return NULL;
}

void clime_reward_describe(struct clime_buf *out) {
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++) clime_buf_printf(out, "  %-12s %s\n", TYPES[i].name, TYPES[i].help);
}
