/* Tokenizer folders as people have them, loaded as transformers 5.24 loads them.
 *
 * tests/golden/folders.jsonl (make_folder_goldens.py) has the folders and what transformers made of each: tokens that
 * only the small files name, which of these files counts, what stands around a text, chat templates by every name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json/scan.h"
#include "common/json/tree.h"
#include "text/tokenizer.h"

#define MAX_FILES 16

struct golden {
    struct clime_str shared, vocab, text; /* the first line: what all folders share */
    struct clime_arena arena;
    char dir[64];
    char *written[MAX_FILES];
    int n_written, line;
};

/* ---- the folder ---- */

static void write_file(struct golden *g, struct clime_str name, struct clime_str text) {
    char *path = xasprintf("%s/" CLIME_STR_FMT, g->dir, CLIME_STR_ARG(name)), *slash = strrchr(path, '/');
    if (slash != path + strlen(g->dir)) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text.ptr, 1, text.len, out), text.len);
    assert_int_equal(fclose(out), 0);
    assert_true(g->n_written < MAX_FILES);
    g->written[g->n_written++] = path;
}

static void write_folder(struct golden *g, struct clime_str files) {
    struct clime_error e = {0};
    struct clime_json j;
    struct clime_str name, text;
    snprintf(g->dir, sizeof g->dir, "/tmp/clime-folders-XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    g->n_written = 0;
    clime_json_init(&j, files.ptr, files.len, &g->arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &name);) {
        enum clime_json_kind kind = clime_json_peek(&j);
        if (kind == CLIME_JSON_STRING)
            clime_json_string(&j, &text);
        else
            clime_json_skip(&j, &text);
        if (kind == CLIME_JSON_NULL) text = g->vocab;
        if (!clime_str_is(name, "tokenizer.json")) {
            write_file(g, name, text);
            continue;
        }
        struct clime_buf whole; /* the members that all share, then the folder's own */
        clime_buf_init(&whole, 1 << 20);
        clime_buf_add(&whole, g->shared.ptr, g->shared.len - 1);
        clime_buf_addc(&whole, ',');
        clime_buf_add(&whole, text.ptr + 1, text.len - 1);
        write_file(g, name, clime_buf_str(&whole));
        clime_buf_free(&whole);
    }
    assert_true(clime_json_end(&j));
}

static void remove_folder(struct golden *g) {
    char *more = xasprintf("%s/additional_chat_templates", g->dir);
    for (int i = 0; i < g->n_written; i++) {
        (void)unlink(g->written[i]);
        free(g->written[i]);
    }
    (void)rmdir(more);
    free(more);
    assert_int_equal(rmdir(g->dir), 0);
}

/* ---- what is loaded ---- */

static void check_ids(const struct golden *g, const struct clime_ids *got, const struct cJSON *want, const char *what) {
    size_t n = 0;
    for (const struct cJSON *id = clime_tree_first(want); id; id = clime_tree_next(id), n++)
        if (n >= got->len || got->data[n] != (int32_t)clime_tree_num(id, -1))
            fail_msg("line %d: %s: id %zu is %d, not %d", g->line, what, n, n < got->len ? got->data[n] : -1,
                     (int)clime_tree_num(id, -1));
    if (n != got->len) fail_msg("line %d: %s: %zu ids, not %zu", g->line, what, got->len, n);
}

static void check_text(const struct golden *g, const char *got, const struct cJSON *want, const char *what) {
    const char *text = clime_tree_str(want, NULL);
    if (got != text && (!got || !text || strcmp(got, text) != 0))
        fail_msg("line %d: %s is %s, not %s", g->line, what, got ? got : "none", text ? text : "none");
}

static void check_tokens(const struct golden *g, const struct clime_tokenizer *t, const struct cJSON *want) {
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    struct clime_buf text;
    struct clime_error e = {0};
    clime_buf_init(&text, 1 << 16);
    assert_int_equal(clime_tokenizer_n_vocab(t), (int)clime_tree_num(clime_tree_get(want, "n"), -1));
    assert_int_equal(clime_tokenizer_encode(t, s, g->text, 0, 1 << 16, &ids, &e), CLIME_OK);
    check_ids(g, &ids, clime_tree_get(want, "ids"), "ids");
    clime_tokenizer_decode(t, ids.data, ids.len, true, &text);
    check_text(g, clime_buf_str(&text).ptr, clime_tree_get(want, "skipped"), "the text without special tokens");
    ids.len = 0;
    assert_int_equal(clime_tokenizer_encode(t, s, clime_str_of("a"), CLIME_ENCODE_SPECIAL, 16, &ids, &e), CLIME_OK);
    check_ids(g, &ids, clime_tree_get(want, "around"), "with special tokens");
    clime_buf_free(&text);
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
}

static void check_names(const struct golden *g, const struct clime_tokenizer *t, const struct cJSON *want) {
    size_t n;
    const int32_t *eos = clime_tokenizer_eos(t, &n);
    int32_t end = (int32_t)clime_tree_num(clime_tree_get(want, "eos"), -1);
    bool stops = end < 0;
    for (size_t i = 0; i < n; i++) stops |= eos[i] == end;
    if (!stops) fail_msg("line %d: %d ends no reply", g->line, end);
    assert_int_equal(clime_tokenizer_bos(t), (int)clime_tree_num(clime_tree_get(want, "bos"), -1));
    assert_int_equal(clime_tokenizer_pad(t), (int)clime_tree_num(clime_tree_get(want, "pad"), -1));
    check_text(g, clime_tokenizer_special_text(t, "bos_token"), clime_tree_get(want, "bos_text"), "bos_token");
    check_text(g, clime_tokenizer_special_text(t, "eos_token"), clime_tree_get(want, "eos_text"), "eos_token");
    static const char *const names[] = {"default", "tool_use", "rag"};
    const struct cJSON *templates = clime_tree_get(want, "templates");
    for (size_t i = 0; i < CLIME_COUNT(names); i++) {
        const struct cJSON *one = clime_tree_get(templates, names[i]);
        /* files of other names alone leave transformers without a default, and clime with that of the configuration */
        if (i == 0 && !one && clime_tree_size(templates) > 0) continue;
        check_text(g, clime_tokenizer_chat_template(t, names[i]), one, names[i]);
    }
}

static void check_line(struct golden *g, struct clime_str line) {
    struct clime_error e = {0};
    struct clime_json j;
    struct clime_str key, files = {NULL, 0}, loaded = {NULL, 0};
    struct clime_tokenizer *t = NULL;
    struct cJSON *want = NULL;
    clime_json_init(&j, line.ptr, line.len, &g->arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        clime_json_skip(&j, clime_str_is(key, "files") ? &files : &loaded);
    assert_true(clime_json_end(&j));
    assert_int_equal(clime_tree_parse(loaded.ptr, loaded.len, &want, &e), CLIME_OK);
    write_folder(g, files);
    if (clime_tokenizer_load(g->dir, &t, &e)) fail_msg("line %d: %s", g->line, e.msg);
    check_tokens(g, t, want);
    check_names(g, t, want);
    clime_tokenizer_free(t);
    clime_tree_free(want);
    remove_folder(g);
}

static void test_as_transformers(void **state) {
    (void)state;
    struct golden g = {.line = 0};
    struct clime_buf text;
    struct clime_error e = {0};
    struct clime_str left, line, key;
    struct clime_json j;
    clime_arena_init(&g.arena, 64 << 20);
    clime_buf_init(&text, 16 << 20);
    if (clime_buf_read_file(&text, "tests/golden/folders.jsonl", &e)) fail_msg("%s", e.msg);
    left = clime_buf_str(&text);
    while (clime_str_line(&left, &line)) {
        if (g.line++ > 0) {
            check_line(&g, line);
            continue;
        }
        clime_json_init(&j, line.ptr, line.len, &g.arena, &e);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "text"))
                clime_json_string(&j, &g.text);
            else
                clime_json_skip(&j, clime_str_is(key, "vocab") ? &g.vocab : &g.shared);
        }
        assert_true(clime_json_end(&j));
    }
    assert_true(g.line > 100);
    clime_buf_free(&text);
    clime_arena_free(&g.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
