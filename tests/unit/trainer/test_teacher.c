/* What goes to a teacher and comes back: replies of endpoints that begin in different places, and broken ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/rollout/teacher.h"

static struct clime_sample *sample(void) { /* prompt 5 6 7, response 8 9 */
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = 3;
    s->n_response = 2;
    s->ids = xcalloc(5, sizeof *s->ids);
    for (int i = 0; i < 5; i++) s->ids[i] = 5 + i;
    return s;
}

static void test_body(void **state) {
    struct clime_sample *s = sample();
    struct clime_buf b;
    (void)state;
    clime_buf_init(&b, 4096);
    clime_teacher_body(s, &b);
    assert_string_equal(b.data, "{\"input_ids\":[5,6,7,8,9],\"sampling_params\":{\"temperature\":0,"
                                "\"max_new_tokens\":0,\"skip_special_tokens\":false},\"return_logprob\":true,"
                                "\"logprob_start_len\":2}");
    clime_buf_free(&b);
    clime_sample_free(s);
}

#define META(entries) "{\"text\":\"\",\"meta_info\":{\"id\":\"x\",\"input_token_logprobs\":[" entries "],\"n\":{}}}"

static void test_replies(void **state) {
    static const struct {
        const char *reply, *says; /* NULL: -0.25 and -1.5 */
    } cases[] = {
        {META("[null,7,null],[-0.25,8,null],[-1.5,9,\"i\"]"), NULL},    /* from logprob_start_len */
        {META("[-9,7],[-0.25,8],[-1.5,9]"), NULL},                      /* with its number */
        {META("[-0.25,8],[-1.5,9]"), NULL},                             /* from the one after */
        {META("[null,5,null],[-3,6],[-2,7],[-0.25,8],[-1.5,9]"), NULL}, /* from the beginning */
        {META("[null,8,null],[-1.5,9,null]"), "no log-probability for token 0"},
        {META("[-0.25,8],[-1.5,10]"), "token 1 of the response is 9, the teacher says 10"},
        {META("[-1.5,9]"), "1 prompt log-probabilities for a response of 2"},
        {META("[-1,1],[-1,1],[-1,1],[-1,1],[-1,1],[-1,1]"), "more log-probabilities than tokens"},
        {META("[-1e99,8],[-1.5,9]"), "no log-probability for token 0"},
        {META("[\"x\",8],[-1.5,9]"), "reply"},
        {META("[-0.25,8],[-1.5]"), "token 1 of the response is 9, the teacher says -1"},
        {META("[],[-0.25,8],[],4,[-2,5]],[-2,5"), "reply"},
        {"{\"meta_info\":{}}", "0 prompt log-probabilities"},
        {"{\"meta_info\":{\"input_token_logprobs\":[[-0.25,8],[-1.5", "reply"},
        {"", "reply"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_sample *s = sample();
        struct clime_error e = {0};
        enum clime_err rc = clime_teacher_read(s, clime_str_of(cases[i].reply), &e);
        if (cases[i].says) {
            assert_int_equal(rc, CLIME_ERR_INPUT);
            if (!strstr(e.msg, cases[i].says)) fail_msg("case %zu: %s", i, e.msg);
            assert_null(s->teacher_logp);
        } else {
            if (rc) fail_msg("case %zu: %s", i, e.msg);
            assert_true(s->teacher_logp[0] == -0.25f && s->teacher_logp[1] == -1.5f);
        }
        clime_sample_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_body), cmocka_unit_test(test_replies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
