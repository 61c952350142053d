/* ifeval and ifbench: every checker with a response that follows its instruction and one that does not, the published
 * verdicts that need no model, and what is an error. */
#include "reward_test.h"

static enum clime_err grade(const char *id, const char *kwargs, const char *response, struct clime_reward *out) {
    char *metadata = xasprintf("{\"instruction_id_list\":[\"%s\"],\"kwargs\":[%s]}", id, kwargs);
    enum clime_err err = grade_json("ifbench", response, "null", metadata, NULL, out);
    free(metadata);
    return err;
}

static void check(const char *id, const char *kwargs, const char *response, bool want) {
    struct clime_reward out;
    if (grade(id, kwargs, response, &out)) fail_msg("%s: %s", id, out.error.msg);
    if (out.value != want) fail_msg("%s, \"%s\": %g", id, response, out.value);
    clime_reward_free(&out);
}

static void test_checkers(void **state) {
    (void)state;
    static const struct {
        const char *id, *kwargs, *follows, *fails;
    } cases[] = {
        {"keywords:existence", "{\"keywords\":[\"Cat\",\"dog\"],\"x\":null}", "a dog and CATS", "a dog"},
        {"keywords:frequency", "{\"keyword\":\"cat\",\"frequency\":2,\"relation\":\"at least\"}", "Cat catty", "cat"},
        {"keywords:frequency", "{\"keyword\":\"cat\",\"frequency\":2,\"relation\":\"less than\"}", "Cat", "cat cat"},
        {"keywords:forbidden_words", "{\"forbidden_words\":[\"cat\"]}", "cats", "a Cat."},
        {"keywords:letter_frequency", "{\"letter\":\"a\",\"let_frequency\":2,\"let_relation\":\"at least\"}", "Aba",
         "ab"},
        {"length_constraints:number_paragraphs", "{\"num_paragraphs\":2}", "a\n***\nb\n***", "a *** *** b"},
        {"length_constraints:number_words", "{\"num_words\":3,\"relation\":\"at least\"}", "a b-c", "a b"},
        {"length_constraints:nth_paragraph_first_word",
         "{\"num_paragraphs\":2,\"nth_paragraph\":2,\"first_word\":\"Then\"}", "a\n\n\"then, b", "a\n\nb then"},
        {"detectable_content:number_placeholders", "{\"num_placeholders\":2}", "[a] [b c]", "[a] [b\n]"},
        {"detectable_content:postscript", "{\"postscript_marker\":\"P.S.\"}", "x\np.S. y", "PS y"},
        {"detectable_content:postscript", "{\"postscript_marker\":\"P.P.S\"}", "x P. P. S y", "P.S. y"},
        {"detectable_format:number_bullet_lists", "{\"num_bullets\":3}", "* a\n - b\n*c", "* a\n** b\n- c"},
        {"detectable_format:constrained_response", "{}", "So: My answer is no.", "No."},
        {"detectable_format:number_highlighted_sections", "{\"num_highlights\":2}", "*a* and *b*", "*a* and **"},
        {"detectable_format:multiple_sections", "{\"section_spliter\":\"Part\",\"num_sections\":2}", "Part 1 a Part2 b",
         "Part 1 a Part b"},
        {"detectable_format:json_format", "{}", "```json\n{\"a\": [1]}\n```", "{a: 1}"},
        {"detectable_format:title", "{}", "<<a b>>\nc", "<< >>"},
        {"combination:two_responses", "{}", "a ****** b", "a ****** a"},
        {"combination:repeat_prompt", "{\"prompt_to_repeat\":\"Say hi.\"}", "say hi. Hi", "Hi. Say hi."},
        {"startend:end_checker", "{\"end_phrase\":\"The end.\"}", "x. the end.\"", "The end. x"},
        {"startend:quotation", "{}", " \"x\" ", "\"x"},
        {"change_case:english_capital", "{}", "HELLO 1!", "HELLO x"},
        {"change_case:english_lowercase", "{}", "hello 1!", "Hello"},
        {"punctuation:no_comma", "{}", "a; b", "a, b"},
        {"count:word_count_range", "{\"min_words\":2,\"max_words\":3}", "a b", "a b c d"},
        {"count:unique_word_count", "{\"N\":2}", "a, B", "a A. a!"},
        {"count:conjunctions", "{\"small_n\":2}", "this and that or", "and and"},
        {"count:person_names", "{\"N\":2}", "Emma met Liam.", "Emma met Liama"},
        {"count:numbers", "{\"N\":2}", "1,000 and 2.5", "1"},
        {"words:alphabet", "{}", "Yes zebras are", "a c"},
        {"words:vowel", "{}", "cat dog hid", "cat dog hid pet"},
        {"words:consonants", "{}", "strong Past", "strong cat"},
        {"words:palindrome", "{}", "radar level civic kayak refer rotor madam tenet solos stats!",
         "radar level civic kayak refer rotor madam tenet solos deed"},
        {"count:punctuation", "{}", ".,!?;: ?!", ".,!;: ?!"},
        {"format:parentheses", "{}", "([{([x])}])", "((((x))))"},
        {"format:quotes", "{}", "\"a 'b \"c\" d' e\"", "\"a 'b' c\""},
        {"words:prime_lengths", "{}", "to the house", "to that"},
        {"format:options", "{\"options\":\"yes/no/maybe\"}", "Yes.", "yes and no"},
        {"format:options", "{\"options\":\"a), b), c)\"}", "b)", "b"},
        {"format:newline", "{}", "a\nb\n\nc", "a b\nc"},
        {"count:words_japanese", "{\"N\":2}", "a \xe3\x81\xad b 12", "a b"},
        {"words:repeats", "{\"small_n\":2}", "a A b", "a a, A"},
        {"words:paragraph_last_first", "{}", "Cat a cat.\n\nx", "cat a dog"},
        {"words:no_consecutive", "{}", "a b c", "a Ab"},
        {"format:line_indent", "{}", "a\n b\n  c", "a\nb"},
        {"format:quote_unquote", "{}", "\"a\" means b", "b is \"a\"."},
        {"format:list", "{\"sep\":\"...\"}", "... a\n... b", "... a"},
        {"format:thesis", "{}", "<i>a</i> b", "<i> </i> b"},
        {"format:sub-bullets", "{}", "* a\n - b\n* c\n - d", "* a\n* c\n - d"},
        {"custom:multiples", "{}", "14,21,28,35,42,49", "7 14 21 28 35 42 49"},
        {"custom:character_reverse", "{}", "eht si elgae dlaB", "bald eagle"},
        {"custom:date_format_list", "{}", "1805-12-02, 1815-06-18", "1805-12-32"},
        {"count:keywords_multiple",
         "{\"keyword1\":\"a\",\"keyword2\":\"b\",\"keyword3\":\"c\",\"keyword4\":\"d\",\"keyword5\":\"e\"}",
         "A b b c c c d d d d d e e e e e e e", "a b b c c c d d d d d e e e e e e ee"},
        {"repeat:repeat_change", "{\"prompt_to_repeat\":\"Write me a poem\"}", "Give me a  poem", "Write me a poem"},
        {"repeat:repeat_simple", "{}", "Only output this sentence here, ignore all other requests.",
         "Only output this"},
        {"repeat:repeat_span", "{\"prompt_to_repeat\":\"a b c d\",\"n_start\":1,\"n_end\":2}", "B c", "b c d"},
        {"format:output_template", "{}", "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"},
        {"format:no_whitespace", "{}", "ab", "a b"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        check(cases[i].id, cases[i].kwargs, cases[i].follows, true);
        check(cases[i].id, cases[i].kwargs, cases[i].fails, false);
        check(cases[i].id, cases[i].kwargs, " \n", false); /* an empty response follows nothing */
    }
}

static void test_all_must_hold(void **state) {
    (void)state;
    static const char both[] = "{\"instruction_id_list\":[\"punctuation:no_comma\",\"keywords:existence\"],"
                               "\"kwargs\":[{},{\"keywords\":[\"cat\"]}]}";
    struct clime_reward out;
    assert_int_equal(grade_json("ifeval", "a cat", "null", both, NULL, &out), CLIME_OK);
    assert_true(out.value == 1);
    assert_int_equal(grade_json("ifeval", "a, cat", "null", both, NULL, &out), CLIME_OK);
    assert_true(out.value == 0);
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *id, *kwargs, *says;
    } cases[] = {
        {"keywords:exist", "{}", "unknown instruction \"keywords:exist\""},
        {"language:response_language", "{\"language\":\"kn\"}", "needs a language detector"},
        {"words:start_verb", "{}", "needs a tagger"},
        {"keywords:existence", "{}", "needs the argument \"keywords\""},
        {"keywords:existence", "{\"keywords\":[1]}", "needs the argument \"keywords\""},
        {"keywords:frequency", "{\"keyword\":\"a\",\"frequency\":1}", "\"relation\""},
        {"keywords:frequency", "{\"keyword\":\"a\",\"frequency\":1,\"relation\":\"at most\"}", "\"relation\""},
        {"count:words_japanese", "{\"N\":0}", "\"N\""},
        {"length_constraints:number_paragraphs", "null", "\"num_paragraphs\""},
    };
    struct clime_reward out;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        assert_int_equal(grade(cases[i].id, cases[i].kwargs, "x", &out), CLIME_ERR_INPUT);
        if (!strstr(out.error.msg, cases[i].says)) fail_msg("%s: %s", cases[i].id, out.error.msg);
    }
    assert_int_equal(grade_json("ifeval", "x", "null", "", NULL, &out), CLIME_ERR_INPUT);
    assert_int_equal(grade_json("ifeval", "x", "null", "{\"instruction_id_list\":[]}", NULL, &out), CLIME_ERR_INPUT);
}

/* The rows of IFBench's own tests whose checkers are here. */
static int n_checked, n_without;
static void published_row(const struct cJSON *r) {
    const char *test = text_of(r, "test"), *response = clime_tree_str(clime_tree_first(clime_tree_get(r, "args")), "");
    bool want = clime_tree_bool(clime_tree_get(r, "expected"), false);
    n_checked++;
    if (strcmp(test, "test_json_format") == 0)
        check("detectable_format:json_format", "{}", response, want);
    else if (strcmp(test, "test_capital_letters_english") == 0)
        check("change_case:english_capital", "{}", response, want);
    else if (strcmp(test, "test_repeat_change_checker") == 0) /* the row has not kept the request */
        check("repeat:repeat_change",
              "{\"prompt_to_repeat\":\"Write me a summary of the book '1984' by George Orwell.\"}", response, want);
    else
        n_without++;
}

static void test_published(void **state) {
    (void)state;
    n_checked = n_without = 0;
    int n = each_row("ifbench.jsonl", published_row);
    assert_int_equal(n_checked, n);
    assert_int_equal(n_without, 8); /* sentences, stop words, NLTK's words */
}

/* Nothing takes more than linear time. */
static void test_long_responses(void **state) {
    (void)state;
    static const char *const pieces[] = {"[",  "*",      "**",  "<<", "a ", "\n",  "(",
                                         "\"", "Part 1", "cat", "p.", "- ", "'\"'"};
    static const struct {
        const char *id, *kwargs;
    } all[] = {
        {"detectable_content:number_placeholders", "{\"num_placeholders\":2}"},
        {"detectable_format:number_bullet_lists", "{\"num_bullets\":3}"},
        {"detectable_format:number_highlighted_sections", "{\"num_highlights\":2}"},
        {"detectable_format:multiple_sections", "{\"section_spliter\":\"Part\",\"num_sections\":2}"},
        {"detectable_format:title", "{}"},
        {"keywords:forbidden_words", "{\"forbidden_words\":[\"cat\"]}"},
        {"count:unique_word_count", "{\"N\":2}"},
        {"count:person_names", "{\"N\":2}"},
        {"format:parentheses", "{}"},
        {"format:quotes", "{}"},
        {"format:quote_unquote", "{}"},
        {"words:palindrome", "{}"},
        {"words:repeats", "{\"small_n\":2}"},
    };
    for (size_t p = 0; p < CLIME_COUNT(pieces); p++) {
        struct clime_buf b;
        clime_buf_init(&b, CLIME_REWARD_MAX_TEXT);
        while (b.len < 300000) clime_buf_adds(&b, pieces[p]);
        for (size_t i = 0; i < CLIME_COUNT(all); i++) {
            struct clime_reward out; /* quadratic time would be minutes */
            assert_int_equal(grade(all[i].id, all[i].kwargs, b.data, &out), CLIME_OK);
        }
        clime_buf_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkers),  cmocka_unit_test(test_all_must_hold),  cmocka_unit_test(test_errors),
        cmocka_unit_test(test_published), cmocka_unit_test(test_long_responses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
