/* The factor of a temperature is one float, whether it comes from the body that the trainer sends, from the sample that
 * it keeps, or from a client's text: every temperature with two digits, as a server reads it and as a micro-batch has
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/learn/micro.h"
#include "trainer/rollout/generate.h"

static double sent(const struct clime_sampling_options *o) { /* the number in the request's body */
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = 1;
    s->ids = xcalloc(2, sizeof *s->ids);
    struct clime_request r = {.sample = s, .sampling = o, .rid = "r"};
    struct clime_buf b;
    clime_buf_init(&b, 4096);
    clime_generate_body(&r, &b);
    const char *at = strstr(b.data, "\"temperature\":");
    assert_non_null(at);
    double t = strtod(strchr(at, ':') + 1, NULL);
    clime_buf_free(&b);
    clime_sample_free(s);
    return t;
}

static float in_batch(float temperature) { /* what the trainer's forward multiplies by */
    int32_t ids[2] = {5, 6}, which = 0;
    uint8_t mask = 1;
    float logp = -1, out;
    struct clime_sample s = {
        .ids = ids, .n_prompt = 1, .n_response = 1, .mask = &mask, .logp = &logp, .temperature = temperature};
    const struct clime_sample *all = &s;
    struct clime_stream stream;
    struct clime_micro mb;
    clime_stream_init(&stream, &all, NULL, 1, INT64_MIN);
    assert_int_equal(stream.n, 1);
    clime_micro_alloc(&mb, 2);
    clime_micro_fill(&mb, &all, &stream, &which, 1);
    out = mb.inv_temp[0];
    clime_micro_free(&mb);
    clime_stream_free(&stream);
    return out;
}

static void test_two_digits(void **state) {
    (void)state;
    for (int i = 1; i <= 200; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d.%02d", i / 100, i % 100);
        double t = strtod(text, NULL);
        struct clime_sampling_options o = {
            .temperature = t, .top_p = 1, .top_k = -1, .max_response_len = 1, .max_context_len = 4};
        float server = clime_inv_temp(sent(&o)), trainer = in_batch((float)t);
        if (memcmp(&server, &trainer, sizeof server))
            fail_msg("T %s: %a and %a", text, (double)server, (double)trainer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_digits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
