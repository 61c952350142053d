/* Which of two trainers that drive one server ends, by the labels that each finds there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/os/dirs.h"
#include "trainer/fleet/fleet_int.h"

static struct clime_ledger *ledger;

static int open_ledger(void **state) {
    char *dir = strdup("/tmp/clime-owner-XXXXXX"), path[64];
    struct clime_error e;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    assert_int_equal(clime_ledger_open(path, &ledger, &e), CLIME_OK);
    *state = dir;
    return 0;
}

static int close_ledger(void **state) {
    clime_ledger_close(ledger);
    struct clime_error e;
    assert_int_equal(clime_dir_remove(*state, &e), CLIME_OK);
    free(*state);
    return 0;
}

/* Trainer `run` finds the labels one after another: with the first it came, its own weights were there between. Whether
 * it ends. */
static bool ends(const char *run, const char *first, const char *const *labels, int n, char why[512]) {
    static struct clime_fleet f;
    static struct clime_fleet_server s;
    f = (struct clime_fleet){.o = {.run = run, .ledger = ledger}};
    s = (struct clime_fleet_server){.fleet = &f, .url = "http://server"};
    clime_fleet_see_label(&f, &s, first);
    assert_int_equal(f.fatal.code, CLIME_OK);
    s.was_ours = true;
    for (int i = 0; i < n && !f.fatal.code; i++) clime_fleet_see_label(&f, &s, labels[i]);
    snprintf(why, 512, "%s", f.fatal.code ? f.fatal.msg : "");
    return f.fatal.code != CLIME_OK;
}

#define ENDS(run, first, why, ...)                                                                                     \
    ends(run, first, (const char *[]){__VA_ARGS__}, (int)CLIME_COUNT(((const char *[]){__VA_ARGS__})), why)

static void test_who_came_second(void **state) {
    char why[512];
    (void)state;
    assert_true(ENDS("a.1", "7@b.1", why, "7@b.1"));
    assert_non_null(strstr(why, "run b drives http://server too"));
    assert_false(ENDS("a.1", "7@b.1", why, "1@a.1", "default", "7", "initial@"));
    assert_false(ENDS("a.1", "default", why, "7@b.1"));

    /* a copy of the folder is another trainer; what the run had given before it was killed is nobody's now */
    assert_true(ENDS("a.2", "7@a.1", why, "8@a.1"));
    assert_non_null(strstr(why, "run a in a copy of its folder drives"));
    assert_false(ENDS("a.2", "7@a.1", why, "8@a.2", "9@a.2"));
    /* of one that was killed and started again it is known that it came later */
    assert_false(ENDS("b.1", "7@a.1", why, "7@a.2"));
}

static void test_who_came_at_the_same_moment(void **state) {
    char why[512];
    (void)state;
    assert_false(ENDS("a.1", "default", why, "1@b.1", "1@b.1", "1@b.1", "1@b.1", "2@b.1"));
    assert_true(ENDS("a.1", "default", why, "1@b.1", "1@b.1", "1@b.1", "1@b.1", "2@b.1", "3@b.1"));
    /* a run that is started in error again and again */
    assert_false(ENDS("a.1", "default", why, "0@b.1", "0@b.2", "0@b.3", "0@b.4", "0@b.5", "0@b.6", "0@b.7"));
}

/* A label behind a push that was answered well: whether it is the push that failed. */
static void test_after_a_push(void **state) {
    static struct clime_fleet f;
    static struct clime_fleet_server s;
    (void)state;
    f = (struct clime_fleet){.o = {.run = "a.1", .ledger = ledger}};
    s = (struct clime_fleet_server){.fleet = &f, .url = "http://server"};
    clime_fleet_see_label(&f, &s, "7@b.1");
    assert_false(clime_fleet_see_label_after_push(&f, &s, "7@b.1")); /* it may be there still */
    assert_true(clime_fleet_see_label_after_push(&f, &s, "0@c.1"));
    assert_false(clime_fleet_see_label_after_push(&f, &s, "0@c.1")); /* and this, too */
    s.was_ours = true;
    assert_true(clime_fleet_see_label_after_push(&f, &s, "3@d.1"));
    assert_false(clime_fleet_see_label_after_push(&f, &s, "3@a.1")); /* our own of before */
    assert_false(clime_fleet_see_label_after_push(&f, &s, "default"));
    assert_int_equal(f.fatal.code, CLIME_OK);
    assert_true(clime_fleet_see_label_after_push(&f, &s, "1@c.1")); /* met at the beginning: that came first */
    assert_int_equal(f.fatal.code, CLIME_ERR_UNAVAILABLE);
}

/* Whom a trainer met on one server it has not met on another. */
static void test_each_server(void **state) {
    static struct clime_fleet f;
    static struct clime_fleet_server old, new;
    (void)state;
    f = (struct clime_fleet){.o = {.run = "a.1", .ledger = ledger}};
    old = (struct clime_fleet_server){.fleet = &f, .url = "http://old", .was_ours = true};
    new = (struct clime_fleet_server){.fleet = &f, .url = "http://new"};
    clime_fleet_see_label(&f, &new, "7@b.1");
    new.was_ours = true;
    clime_fleet_see_label(&f, &old, "8@b.1");
    assert_int_equal(f.fatal.code, CLIME_OK);
    clime_fleet_see_label(&f, &new, "8@b.1");
    assert_int_equal(f.fatal.code, CLIME_ERR_UNAVAILABLE);
}

/* It left its router, was forgotten, and is back with what this trainer gave it: another one came second all the same.
 */
static void test_a_server_that_is_back(void **state) {
    static struct clime_fleet f;
    static struct clime_fleet_server s;
    (void)state;
    f = (struct clime_fleet){.o = {.run = "a.1", .ledger = ledger}};
    s = (struct clime_fleet_server){.fleet = &f, .url = "http://server"};
    clime_fleet_see_label(&f, &s, "3@a.1");
    clime_fleet_see_label(&f, &s, "7@b.1");
    s.was_ours = true; /* it has been given ours again */
    clime_fleet_see_label(&f, &s, "8@b.1");
    assert_int_equal(f.fatal.code, CLIME_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_came_second),       cmocka_unit_test(test_who_came_at_the_same_moment),
        cmocka_unit_test(test_after_a_push),          cmocka_unit_test(test_each_server),
        cmocka_unit_test(test_a_server_that_is_back),
    };
    return cmocka_run_group_tests(tests, open_ledger, close_ledger);
}
