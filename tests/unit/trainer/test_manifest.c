/* The list of a checkpoint's files: written, removed by, and kept clear of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "trainer/learn/manifest.h"

static void put(const char *dir, const char *name) {
    struct clime_error e;
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (clime_atomic_save(path, "x", 1, &e)) fail_msg("%s", e.msg);
}

static bool has(const char *dir, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static enum clime_err write_state(const char *dir, struct clime_error *e) {
    char path[200];
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_key(&w, "files");
    enum clime_err rc = clime_manifest_write(dir, &w, e);
    clime_jw_close(&w); /* aborts where a key has no value */
    snprintf(path, sizeof path, "%s/" CLIME_MANIFEST_FILE, dir);
    if (!rc) rc = clime_atomic_save(path, b.data, b.len, e);
    clime_buf_free(&b);
    return rc;
}

static void test_a_folder_that_cannot_be_read(void **state) {
    struct clime_error e;
    (void)state;
    assert_int_equal(write_state("/nowhere", &e), CLIME_ERR_IO);
    assert_non_null(strstr(e.msg, "/nowhere"));
}

static void test_what_is_not_ours_stays(void **state) {
    char dir[] = "/tmp/clime_manifest.XXXXXX", sub[64];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    put(dir, "master");
    put(dir, "moment1");
    assert_int_equal(write_state(dir, &e), CLIME_OK);
    put(dir, "notes.txt");
    snprintf(sub, sizeof sub, "%s/hf", dir);
    assert_int_equal(mkdir(sub, 0777), 0);
    assert_int_equal(clime_manifest_remove(dir, &e), CLIME_ERR_IO);
    assert_non_null(strstr(e.msg, "no part of the checkpoint"));
    assert_false(has(dir, "master") || has(dir, "moment1") || has(dir, CLIME_MANIFEST_FILE));
    assert_true(has(dir, "notes.txt") && has(dir, "hf"));
    assert_int_equal(clime_manifest_remove(dir, &e), CLIME_ERR_IO); /* again: as little */
    assert_true(has(dir, "notes.txt"));
    rmdir(sub);
    assert_int_equal(clime_dir_remove(dir, &e), CLIME_OK);
    assert_int_equal(clime_manifest_remove(dir, &e), CLIME_OK); /* it is gone */
}

static void test_a_whole_checkpoint_goes(void **state) {
    char dir[] = "/tmp/clime_manifest.XXXXXX";
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(dir));
    put(dir, "master");
    assert_int_equal(write_state(dir, &e), CLIME_OK);
    if (clime_manifest_remove(dir, &e)) fail_msg("%s", e.msg);
    assert_int_not_equal(access(dir, F_OK), 0);
}

static void test_places_in_checkpoints(void **state) {
    char run[] = "/tmp/clime_manifest.XXXXXX", path[200];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(run));
    put(run, "ledger.db");
    snprintf(path, sizeof path, "%s/checkpoints/step_1", run);
    assert_int_equal(clime_make_dirs(path, &e), CLIME_OK);
    put(path, CLIME_MANIFEST_FILE);
    static const struct {
        const char *place;
        bool is_refused;
    } cases[] = {{"%s/hf", false},
                 {"%s/checkpoints/hf", true},
                 {"%s/checkpoints/step_1/hf", true},
                 {"%s/checkpoints/step_1/a/b", true},
                 {"%s/checkpoints", false},
                 {"%s/checkpoints-of-others/hf", false}};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        char *place = xasprintf(cases[i].place, run);
        if ((clime_manifest_check_outside(place, &e) != CLIME_OK) != cases[i].is_refused) fail_msg("%s", place);
        free(place);
    }
    assert_int_equal(chdir(path), 0);
    assert_int_equal(clime_manifest_check_outside("hf", &e), CLIME_ERR_INPUT);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(clime_dir_remove(path, &e), CLIME_OK);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    assert_int_equal(clime_dir_remove(path, &e), CLIME_OK);
    assert_int_equal(clime_dir_remove(run, &e), CLIME_OK);
}

/* A folder in what is replaced cannot be removed: it stays aside, and the new one is in its place. */
static void test_a_folder_in_what_is_replaced(void **state) {
    char run[] = "/tmp/clime_manifest.XXXXXX", path[100], tmp[100], sub[120];
    struct clime_error e;
    (void)state;
    assert_non_null(mkdtemp(run));
    snprintf(path, sizeof path, "%s/x", run);
    snprintf(tmp, sizeof tmp, "%s/x.tmp", run);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(clime_make_dirs(tmp, &e), CLIME_OK);
        put(tmp, i % 2 ? "odd" : "even");
        if (clime_dir_publish(tmp, path, &e)) fail_msg("%s", e.msg);
        assert_true(has(path, i % 2 ? "odd" : "even"));
        snprintf(sub, sizeof sub, "%s/a/b", path);
        assert_int_equal(clime_make_dirs(sub, &e), CLIME_OK);
    }
    assert_true(has(run, "x.old/a/b") && has(run, "x.old.1/a/b") && !has(run, "x.old.2"));
    static const char *const left[] = {"x/a", "x", "x.old/a", "x.old", "x.old.1/a", "x.old.1", ""};
    for (size_t i = 0; i < CLIME_COUNT(left); i++) {
        snprintf(sub, sizeof sub, "%s/%s", run, left[i]);
        if (clime_dir_remove(sub, &e)) fail_msg("%s", e.msg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_folder_that_cannot_be_read), cmocka_unit_test(test_what_is_not_ours_stays),
        cmocka_unit_test(test_a_whole_checkpoint_goes),      cmocka_unit_test(test_places_in_checkpoints),
        cmocka_unit_test(test_a_folder_in_what_is_replaced),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
