/* Output parsers: what they make of a text, and that it does not depend on how the text was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "text/output/output_parser.h"

struct row {
    const char *parser, *prompt_end, *text, *reasoning, *content;
};

#define KIMI "\xE2\x97\x81think\xE2\x96\xB7"
#define KIMI_END "\xE2\x97\x81/think\xE2\x96\xB7"

static const struct row rows[] = {
    {"none", "<think>\n", "<think>a</think>b ", "", "<think>a</think>b "},
    {"none", "", "", "", ""},
    {"qwen3", "assistant\n", "<think>\nWell,  so.\n</think>\n\nYes. ", "Well,  so.", "Yes. "},
    {"qwen3", "assistant\n", " \n<think>a</think>b", "a", "b"},
    {"qwen3", "assistant\n<think>\n", "Well\n</think>\n\nYes.", "Well", "Yes."},
    {"qwen3", "<think>\n\n</think>\n\n", "Yes. <think>no</think>", "", "Yes. <think>no</think>"},
    {"qwen3", "", "<think>\n\n</think>\n\nYes.", "", "Yes."},
    {"qwen3", "", " plain\n", "", " plain\n"},
    {"qwen3", "", "<thin", "", "<thin"},
    {"qwen3", "", "  <think", "", "  <think"},
    {"qwen3", "", "<think>cut of", "cut of", ""},
    {"qwen3", "", "<think>cut </thin", "cut </thin", ""},
    {"qwen3", "", "<think>cut \n", "cut \n", ""},
    {"qwen3", "", "<think>a < b </ c </think >d</think>e", "a < b </ c </think >d", "e"},
    {"qwen3", "", "<think>a</think>b</think>c", "a", "b</think>c"},
    {"qwen3", "", "<think>", "", ""},
    {"qwen3", "", "", "", ""},
    {"qwen3", "", "<think> \n </think> \n ", "", ""},
    {"deepseek-r1", "", "Well\n</think>\n\nYes.", "Well", "Yes."},
    {"deepseek-r1", "", "<think>\nWell</think>Yes.", "Well", "Yes."},
    {"deepseek-r1", "<think>\n", "Well", "Well", ""},
    {"deepseek-r1", "<think>\n\n</think>\n\n", "Yes. </think>", "", "Yes. </think>"}, /* closed by the prompt */
    {"deepseek-r1", "</think>", " <thin", "", " <thin"},
    {"deepseek-r1", "</think>", "<think>a</think>b", "a", "b"},
    {"glm45", "", "\n<think>a</think>\nb", "a", "b"},
    {"glm45", "", "<think>a\n<tool_call>f", "a", "<tool_call>f"},
    {"glm45", "<think></think>", "b <think>", "", "b <think>"},
    {"kimi_k2", "", "<think>a<|tool_calls_section_begin|>b", "a", "<|tool_calls_section_begin|>b"},
    {"kimi", "", KIMI "a" KIMI_END "b \xE2\x97\x81", "a", "b \xE2\x97\x81"},
};

static void expect(const struct clime_parse *p, const struct row *r) {
    struct clime_buf out;
    clime_buf_init(&out, 1 << 16);
    clime_segments_text(&p->segments, clime_str_of(r->text), CLIME_SEGMENT_REASONING, &out);
    if (!clime_str_is(clime_buf_str(&out), r->reasoning))
        fail_msg("%s: \"%s\": reasoning \"%.*s\"", r->parser, r->text, CLIME_STR_ARG(clime_buf_str(&out)));
    clime_buf_clear(&out);
    clime_segments_text(&p->segments, clime_str_of(r->text), CLIME_SEGMENT_CONTENT, &out);
    if (!clime_str_is(clime_buf_str(&out), r->content))
        fail_msg("%s: \"%s\": content \"%.*s\"", r->parser, r->text, CLIME_STR_ARG(clime_buf_str(&out)));
    assert_int_equal(clime_segments_have(&p->segments, CLIME_SEGMENT_REASONING), r->reasoning[0] != '\0');
    clime_buf_free(&out);
}

/* Feeds the text in pieces that the bits of `cuts` end, reading with a cursor after each: the cursor's pieces add up.
 */
static void feed(const struct row *r, uint64_t cuts) {
    struct clime_str text = clime_str_of(r->text);
    struct clime_parse_cursor cursor = {0};
    const struct clime_output_format how = {.reasoning = clime_output_parser_find(r->parser)};
    struct clime_piece got;
    struct clime_buf read[2];
    struct clime_parse p;
    clime_buf_init(&read[0], 1 << 16);
    clime_buf_init(&read[1], 1 << 16);
    clime_parse_begin(&p, &how, clime_str_of(r->prompt_end));
    for (size_t n = 0; n <= text.len; n++) {
        bool last = n == text.len;
        if (!last && !(cuts >> (n % 64) & 1)) continue;
        clime_parse_feed(&p, (struct clime_str){text.ptr, n}, last);
        while (clime_parse_next(&p, text, &cursor, &got)) clime_buf_add(&read[got.kind], got.text.ptr, got.text.len);
    }
    expect(&p, r);
    assert_true(clime_str_is(clime_buf_str(&read[CLIME_SEGMENT_REASONING]), r->reasoning));
    assert_true(clime_str_is(clime_buf_str(&read[CLIME_SEGMENT_CONTENT]), r->content));
    clime_parse_free(&p);
    clime_buf_free(&read[0]);
    clime_buf_free(&read[1]);
}

static void test_rows(void **state) {
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 11);
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        feed(&rows[i], 0);
        feed(&rows[i], UINT64_MAX);
        for (int k = 0; k < 200; k++) feed(&rows[i], (uint64_t)clime_rng_u32(&rng) << 32 | clime_rng_u32(&rng));
    }
}

/* Texts made of pieces of markers: cut anywhere, the same segments. */
static void test_cuts(void **state) {
    static const char *const pieces[] = {"<think>", "</think>", "<", "</", "think>", "<th", "\n", " ", "a", ">"};
    static const char *const parsers[] = {"qwen3", "deepseek-r1"};
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 12);
    for (int round = 0; round < 3000; round++) {
        struct clime_buf text, reasoning, content;
        struct clime_parse whole;
        clime_buf_init(&text, 1 << 12);
        clime_buf_init(&reasoning, 1 << 12);
        clime_buf_init(&content, 1 << 12);
        clime_buf_adds(&text, "");
        for (int n = (int)(clime_rng_u32(&rng) % 12); n > 0; n--)
            clime_buf_adds(&text, pieces[clime_rng_u32(&rng) % CLIME_COUNT(pieces)]);
        const char *parser = parsers[round % 2];
        const char *end = round % 3 ? "" : "<think>\n";
        const struct clime_output_format how = {.reasoning = clime_output_parser_find(parser)};
        clime_parse_begin(&whole, &how, clime_str_of(end));
        clime_parse_feed(&whole, clime_buf_str(&text), true);
        clime_segments_text(&whole.segments, clime_buf_str(&text), CLIME_SEGMENT_REASONING, &reasoning);
        clime_segments_text(&whole.segments, clime_buf_str(&text), CLIME_SEGMENT_CONTENT, &content);
        clime_buf_adds(&reasoning, "");
        clime_buf_adds(&content, "");
        const struct row r = {parser, end, text.data, reasoning.data, content.data};
        feed(&r, UINT64_MAX);
        feed(&r, (uint64_t)clime_rng_u32(&rng) << 32 | clime_rng_u32(&rng));
        clime_parse_free(&whole);
        clime_buf_free(&text);
        clime_buf_free(&reasoning);
        clime_buf_free(&content);
    }
}

/* Where a reply begins, by the end of its prompt. */
static void test_beginnings(void **state) {
    static const struct {
        const char *parser, *prompt_end;
        bool reasons, closed;
    } cases[] = {
        {"none", "<think>\n\n</think>\n\n", false, false},
        {"qwen3", "assistant\n", false, false},
        {"qwen3", "assistant\n<think>\n", true, false},
        {"qwen3", "assistant\n<think>\n\n</think>\n\n", false, true},
        {"deepseek-r1", "assistant\n", true, false},
        {"deepseek-r1", "assistant\n</think>", false, true},
        {"glm45", "<|assistant|>\n<think></think>", false, true},
        {"kimi", KIMI KIMI_END, false, true},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        const struct clime_output_format how = {.reasoning = clime_output_parser_find(cases[i].parser)};
        struct clime_parse p;
        clime_parse_begin(&p, &how, clime_str_of(cases[i].prompt_end));
        assert_int_equal(clime_parse_is_reasoning(&p), cases[i].reasons);
        assert_int_equal(clime_parse_is_closed(&p), cases[i].closed);
        clime_parse_free(&p);
    }
}

static void test_table(void **state) {
    struct clime_buf names;
    (void)state;
    clime_buf_init(&names, 4096);
    clime_output_parser_names(&names);
    assert_non_null(strstr(names.data, "none|qwen3|"));
    assert_null(clime_output_parser_find("qwen"));
    assert_ptr_equal(clime_output_parser_find("deepseek_r1"), clime_output_parser_find("deepseek-r1"));
    clime_buf_free(&names);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_beginnings), cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
