/* The reward types ifeval and ifbench: 1 when the response follows every instruction of its prompt. Any thread; no
 * state.
 *
 * Instructions come as in the data sets (Zhou et al., "Instruction-Following Evaluation for Large Language Models",
 * 2023; Pyatkin et al., "Generalizing Verifiable Instruction Following", 2025): metadata.instruction_id_list and
 * metadata.kwargs, one object each. Strict verdict: an empty response follows nothing. An unknown id, or one whose
 * checker needs a language model, is an error.
 */
#include "common/err.h"
#include "grade/grade.h"
#include "grade/instructions.h"
#include "grade/text.h"

static const struct clime_instruction_checker *find(const char *id) {
    const struct clime_instruction_checker *const tables[] = {clime_ifeval_checkers, clime_ifbench_word_checkers,
                                                              clime_ifbench_form_checkers};
    for (size_t t = 0; t < CLIME_COUNT(tables); t++)
        for (const struct clime_instruction_checker *c = tables[t]; c->id; c++)
            if (strcmp(c->id, id) == 0) return c;
    return NULL;
}

static enum clime_err check_all(const struct cJSON *ids, const struct cJSON *kwargs, struct clime_instruction *in,
                                bool *follows, struct clime_error *e) {
    const struct cJSON *args = kwargs && clime_tree_kind(kwargs) == CLIME_JSON_ARRAY ? clime_tree_first(kwargs) : NULL;
    bool empty = clime_rtext_strip(in->response).len == 0;
    *follows = true;
    for (const struct cJSON *one = clime_tree_first(ids); one; one = clime_tree_next(one)) {
        const char *id = clime_tree_str(one, "");
        const struct clime_instruction_checker *c = find(id);
        in->kwargs = args && clime_tree_kind(args) == CLIME_JSON_OBJECT ? args : NULL;
        if (!c) return clime_fail(e, CLIME_ERR_INPUT, "unknown instruction \"%.80s\"", id);
        if (!c->follows) return clime_fail(e, CLIME_ERR_INPUT, "instruction %s is not checked here: %s", id, c->why);
        bool ok = c->follows(in);
        if (in->missing)
            return clime_fail(e, CLIME_ERR_INPUT, "instruction %s needs the argument \"%s\" in kwargs", id,
                              in->missing);
        *follows = *follows && ok && !empty;
        args = args ? clime_tree_next(args) : NULL;
    }
    return CLIME_OK;
}

enum clime_err clime_grade_instructions(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_instruction question = {.response = in->response};
    struct cJSON *tree = NULL;
    struct clime_buf lower;
    bool follows = false;
    if (in->metadata.len && clime_tree_parse(in->metadata.ptr, in->metadata.len, &tree, &out->error))
        return out->error.code;
    const struct cJSON *ids = tree ? clime_tree_get(tree, "instruction_id_list") : NULL;
    if (!ids || clime_tree_kind(ids) != CLIME_JSON_ARRAY || !clime_tree_first(ids)) {
        clime_fail(&out->error, CLIME_ERR_INPUT, "ifeval and ifbench need metadata.instruction_id_list");
    } else {
        clime_rtext_init(&lower, in->response);
        clime_rtext_lower(&lower);
        question.lower = clime_buf_str(&lower);
        check_all(ids, clime_tree_get(tree, "kwargs"), &question, &follows, &out->error);
        clime_buf_free(&lower);
    }
    out->value = follows;
    clime_tree_free(tree);
    return out->error.code;
}
