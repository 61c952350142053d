/* The rewards without a grammar: exact, random and none. Any thread; no state.
 *
 * random depends only on the sample's seed, so runs with it are reproducible.
 */
#include "common/rng.h"
#include "grade/grade.h"
#include "grade/text.h"

#define RANDOM_STREAM 0x52575244 /* "RWRD": distinct from the streams of sampling, which use the same seed */

enum clime_err clime_grade_exact(const struct clime_grader_input *in, struct clime_reward *out) {
    if (in->label_kind == CLIME_JSON_NULL)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "exact needs a label: there is none, or it is null");
    out->value = clime_str_eq(clime_rtext_strip(in->response), clime_rtext_strip(in->label)) ? 1 : 0;
    return CLIME_OK;
}

enum clime_err clime_grade_random(const struct clime_grader_input *in, struct clime_reward *out) {
    out->value = clime_rng_uniform(in->seed, 0, RANDOM_STREAM) < 0.5f ? 0 : 1;
    return CLIME_OK;
}

enum clime_err clime_grade_none(const struct clime_grader_input *in, struct clime_reward *out) {
    (void)in;
    out->value = 0;
    return CLIME_OK;
}
