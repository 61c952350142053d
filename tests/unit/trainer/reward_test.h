/* What the reward tests share: rows of the published graders' data, and one-line grading. Test code only. */
#ifndef CLIME_TESTS_UNIT_TRAINER_REWARD_TEST_H
#define CLIME_TESTS_UNIT_TRAINER_REWARD_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/json/tree.h"
#include "common/json/write.h"
#include "tests/unit/shared_data.h"
#include "trainer/reward/reward.h"

/* Calls row(tree, count) for each line of graders/name and returns how many there were; skips the test when the
 * shared data is absent. */
static inline int each_row(const char *name, void (*row)(const struct cJSON *r)) {
    char *inside = xasprintf("graders/%s", name), *path = shared_data(inside), *line = NULL;
    FILE *f = fopen(path, "r");
    size_t size = 0;
    ssize_t len;
    int n = 0;
    free(inside);
    free(path);
    assert_non_null(f);
    while ((len = getline(&line, &size, f)) > 0) {
        struct clime_error e = {0};
        struct cJSON *tree = NULL;
        assert_int_equal(clime_tree_parse(line, (size_t)len, &tree, &e), CLIME_OK);
        row(tree);
        clime_tree_free(tree);
        n++;
    }
    free(line);
    fclose(f);
    return n;
}

static inline const char *text_of(const struct cJSON *r, const char *key) {
    return clime_tree_str(clime_tree_get(r, key), NULL);
}

/* Grades with a JSON label; the caller frees out. */
static inline enum clime_err grade_json(const char *type, const char *response, const char *label, const char *metadata,
                                        const char *key, struct clime_reward *out) {
    struct clime_reward_request q = {.type = type, .response = clime_str_of(response), .label = clime_str_of(label)};
    q.label_is_json = true;
    q.metadata = clime_str_of(metadata);
    return clime_reward_grade(&q, key, out);
}

/* The number that a text label gets; fails the test on an error state. */
static inline double grade_text(const char *type, const char *response, const char *label, const char *key) {
    struct clime_reward_request q = {.type = type, .response = clime_str_of(response), .label = clime_str_of(label)};
    struct clime_reward out;
    if (clime_reward_grade(&q, key, &out)) fail_msg("%s: %s", type, out.error.msg);
    double value = out.value;
    clime_reward_free(&out);
    return value;
}

#endif
