/* Prompts: sources and slices, keys, templates, the order of epochs, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "trainer/data/data.h"

static char dir[64], file[96];
static const char *sources[] = {file, NULL};
static struct clime_tokenizer *tokenizer;

static int setup(void **state) {
    static const char *const specials[] = {"<|end|>", "<|user|>"};
    static const char template[] = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
                                   "{% if tools %}[{{ tools | length }}]{% endif %}{{ suffix }}";
    struct clime_error e = {0};
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/clime_data_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(file, sizeof file, "%s/p.jsonl", dir);
    if (clime_tokenizer_write_bytes(dir, specials, 2, "<|end|>", NULL, template, &e)) return 1;
    return clime_tokenizer_load(dir, &tokenizer, &e) ? 1 : 0;
}

static int teardown(void **state) {
    char command[96];
    (void)state;
    clime_tokenizer_free(tokenizer);
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    return system(command) ? 1 : 0;
}

static void write_file(const char *text) {
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct clime_data_options options(void) {
    return (struct clime_data_options){.sources = sources,
                                       .n_sources = 1,
                                       .input_key = "q",
                                       .label_key = "a",
                                       .metadata_key = "metadata",
                                       .tool_key = "tools"};
}

static void test_slices_are_pythons(void **state) {
    static const struct {
        const char *slice;
        int64_t n, first, last;
    } cases[] = {{"", 10, 0, 10},    {":", 10, 0, 10},   {"2:5", 10, 2, 5},  {":3", 10, 0, 3},
                 {"8:", 10, 8, 10},  {"-3:", 10, 7, 10}, {":-2", 10, 0, 8},  {"5:100", 10, 5, 10},
                 {"-100:", 3, 0, 3}, {"4:2", 10, 4, 2},  {"-4:-1", 10, 6, 9}};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_error e;
        int64_t first, last;
        assert_int_equal(clime_source_slice(cases[i].slice, cases[i].n, &first, &last, &e), CLIME_OK);
        assert_int_equal(first, cases[i].first);
        assert_int_equal(last, cases[i].last);
    }
    static const char *const bad[] = {"p@[",      "p@[]",      "p@[a:b]",   "p@[1:2",
                                      "p@[1:2]x", "p@[--1:2]", "p@[1:2:3]", "p@[3]"};
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        struct clime_error e;
        struct clime_source s;
        int64_t first, last;
        if (clime_source_parse(bad[i], &s, &e)) continue;
        assert_int_equal(clime_source_slice(s.slice, 10, &first, &last, &e), CLIME_ERR_INPUT);
        clime_source_free(&s);
    }
}

static void test_keys_label_metadata(void **state) {
    struct clime_data_options o = options();
    struct clime_dataset d;
    struct clime_error e = {0};
    (void)state;
    write_file("{\"q\": \"a\\nb\", \"a\": 42, \"metadata\": {\"x\": [1]}, \"other\": null}\n"
               "\n"
               "{\"q\": \"c\", \"a\": \"t\", \"tools\": [{}, {}]}\n"
               "{\"q\": \"c\", \"a\": \"t\", \"tools\": [{}], \"metadata\": {\"tools\": 1, \"x\": 2}}\n");
    assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_OK);
    assert_int_equal(d.n, 3);
    assert_string_equal(d.prompts[0].text, "a\nb");
    assert_int_equal(d.prompts[0].n_ids, 3);
    assert_int_equal(d.prompts[0].ids[1], '\n');
    assert_string_equal(d.prompts[0].label, "42");
    assert_string_equal(d.prompts[0].metadata, "{\"x\": [1]}");
    assert_int_equal(d.prompts[1].line, 3); /* of the file, empty lines counted */
    assert_string_equal(d.prompts[1].label, "\"t\"");
    assert_string_equal(d.prompts[1].metadata, "{\"tools\":[{}, {}]}");
    assert_string_equal(d.prompts[2].metadata, "{\"x\":2,\"tools\":[{}]}"); /* each name once */
    clime_dataset_free(&d);
}

static void test_chat_template(void **state) {
    struct clime_data_options o = options();
    struct clime_dataset d;
    struct clime_error e = {0};
    (void)state;
    o.apply_chat_template = true;
    o.apply_chat_template_kwargs = "{\"suffix\": \"!\"}";
    write_file(
        "{\"q\": \"hi\", \"a\": 1}\n"
        "{\"q\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"user\", \"content\": \"y\"}], \"a\": 1}\n"
        "{\"q\": \"z\", \"a\": 1, \"tools\": \"[{}, {}, {}]\"}\n");
    assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_OK);
    assert_string_equal(d.prompts[0].text, "<|user|>hi!");
    assert_int_equal(d.prompts[0].n_ids, 4); /* the special token is one id */
    assert_string_equal(d.prompts[1].text, "<|user|>x<|user|>y!");
    assert_string_equal(d.prompts[2].text, "<|user|>z[3]!");
    clime_dataset_free(&d);
}

static void test_long_prompts_are_left_out(void **state) {
    struct clime_data_options o = options();
    struct clime_dataset d;
    struct clime_error e = {0};
    (void)state;
    o.max_prompt_len = 2;
    write_file("{\"q\": \"ab\", \"a\": 1}\n{\"q\": \"abc\", \"a\": 1}\n{\"q\": \"d\", \"a\": 1}\n");
    assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_OK);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.n_too_long, 1);
    assert_string_equal(d.prompts[1].text, "d");
    clime_dataset_free(&d);
}

static void test_epochs(void **state) {
    struct clime_data_options o = options();
    struct clime_dataset a, b;
    struct clime_error e = {0};
    char text[4096] = "";
    int seen[20] = {0}, moved = 0;
    (void)state;
    for (int i = 0; i < 20; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"q\": \"%c\", \"a\": %d}\n", 'a' + i, i);
    write_file(text);
    o.shuffle = true;
    o.seed = 5;
    assert_int_equal(clime_dataset_load(&o, tokenizer, &a, &e), CLIME_OK);
    assert_int_equal(clime_dataset_load(&o, tokenizer, &b, &e), CLIME_OK);
    for (int g = 0; g < 60; g++) { /* every epoch is a permutation, another one each time */
        int64_t epoch;
        const struct clime_prompt *p = clime_dataset_at(&a, g, &epoch);
        assert_int_equal(epoch, g / 20);
        seen[p->line - 1]++;
        if (g % 20 == 19)
            for (int i = 0; i < 20; i++) assert_int_equal(seen[i], g / 20 + 1);
        moved += p->line != clime_dataset_at(&a, (g + 20) % 60, NULL)->line;
    }
    assert_true(moved > 40);
    for (int g = 59; g >= 0; g -= 7) /* a group's prompt needs no history */
        assert_int_equal(clime_dataset_at(&b, g, NULL)->line, clime_dataset_at(&a, g, NULL)->line);
    clime_dataset_free(&b);
    o.shuffle = false;
    assert_int_equal(clime_dataset_load(&o, tokenizer, &b, &e), CLIME_OK);
    for (int g = 0; g < 40; g++) assert_int_equal(clime_dataset_at(&b, g, NULL)->line, g % 20 + 1);
    clime_dataset_free(&a);
    clime_dataset_free(&b);
}

static void test_refused(void **state) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "holds no prompt"},
        {"{\"q\": \"x\", \"a\": 1}\n{\"q\": \"x\", \"a\": 1\n", "p.jsonl:2"},
        {"{\"a\": 1}\n", "--input-key"},
        {"{\"q\": \"x\"}\n", "--label-key"},
        {"{\"q\": [1], \"a\": 1}\n", "--apply-chat-template"},
        {"{\"q\": \"\", \"a\": 1}\n", "empty"},
        {"{\"q\": \"x\", \"a\": 1, \"metadata\": 3}\n", "metadata"},
        {"{\"q\": \"\xff\", \"a\": 1}\n", "p.jsonl:1"},
        {"[1]\n", "p.jsonl:1"},
    };
    struct clime_data_options o = options();
    struct clime_dataset d;
    struct clime_error e;
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        write_file(cases[i].text);
        assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, cases[i].says));
    }
    sources[0] = "/nowhere/p.jsonl";
    assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_ERR_NOT_FOUND);
    sources[0] = "/nowhere/p.parquet";
    assert_int_equal(clime_dataset_load(&o, tokenizer, &d, &e), CLIME_ERR_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_are_pythons),
        cmocka_unit_test(test_keys_label_metadata),
        cmocka_unit_test(test_chat_template),
        cmocka_unit_test(test_long_prompts_are_left_out),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("data", tests, setup, teardown);
}
