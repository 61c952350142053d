/* Alarms: each row raised by figures that are its cause, once for a cause, and over when it is; the ledger's memory of
 * them; commands that are told. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/json/tree.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/watch/alarm_notify.h"
#include "trainer/watch/alarms.h"
#include "trainer/watch/metrics_log.h"

struct fixture {
    char dir[64], path[96];
    struct clime_ledger *ledger;
    struct clime_run run;
    struct clime_alarms *alarms;
    int64_t step;
};

static void start(struct fixture *f, const char *word) {
    struct clime_error e = {0};
    struct clime_alarm_options o = {.limits = {&word, word ? 1 : 0}};
    assert_int_equal(clime_ledger_open(f->path, &f->ledger, &e), CLIME_OK);
    assert_int_equal(clime_run_begin(f->ledger, "r1", 42, "{}", &f->run, &e), CLIME_OK);
    assert_int_equal(clime_alarms_open(&o, true, f->ledger, &f->run, f->dir, &f->alarms, &e), CLIME_OK);
}

static void stop(struct fixture *f) {
    clime_alarms_close(f->alarms);
    clime_run_free(&f->run);
    clime_ledger_close(f->ledger);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/clime_alarms_XXXXXX");
    if (!mkdtemp(f->dir)) return 1;
    snprintf(f->path, sizeof f->path, "%s/ledger.db", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", f->dir);
    int rc = system(command);
    free(f);
    return rc;
}

/* A line of the loop: recorded, then told. */
static void line(struct fixture *f, const char *kind, const char *figure, double value) {
    struct clime_metrics_line m;
    struct clime_error e = {0};
    clime_metrics_line_begin(&m, kind, f->step, f->step);
    clime_metrics_line_add(&m, figure, value);
    const char *text = clime_metrics_line_end(&m);
    assert_int_equal(clime_metrics_put(f->ledger, kind, f->step++, text, &e), CLIME_OK);
    clime_alarms_line(f->alarms, text);
    clime_metrics_line_free(&m);
}

static void value(struct fixture *f, int id, double v) {
    const struct clime_alarm_rule *r = &clime_alarm_rules[id];
    if (r->figure)
        line(f, r->line, r->figure, v);
    else
        clime_alarms_see(f->alarms, (enum clime_alarm)id, v, NULL, NULL);
}

struct told { /* events of one alarm, oldest first: "+-+" for raised, cleared, raised */
    const char *name;
    char what[32];
    char cause[512];
};

static void read_event(void *arg, const char *detail) {
    struct told *t = arg;
    struct cJSON *tree;
    struct clime_error e = {0};
    assert_int_equal(clime_tree_parse(detail, strlen(detail), &tree, &e), CLIME_OK);
    bool raised = !strcmp(clime_tree_str(clime_tree_get(tree, "state"), ""), "raised");
    if (!strcmp(clime_tree_str(clime_tree_get(tree, "alarm"), ""), t->name)) {
        t->what[strlen(t->what)] = raised ? '+' : '-';
        snprintf(t->cause, sizeof t->cause, "%s", clime_tree_str(clime_tree_get(tree, "cause"), ""));
        assert_int_equal(raised, strlen(clime_tree_str(clime_tree_get(tree, "advice"), "")) > 0);
    }
    clime_tree_free(tree);
}

static struct told told(struct fixture *f, int id) {
    struct told t = {.name = clime_alarm_rules[id].name};
    struct clime_error e = {0};
    assert_int_equal(clime_events_each(clime_ledger_reader(f->ledger), "alarm", read_event, &t, &e), CLIME_OK);
    return t;
}

static bool is_low(const struct clime_alarm_rule *r) {
    return r->test == CLIME_ALARM_UP_TO || r->test == CLIME_ALARM_FALLEN;
}

/* What a sound run has, on the far side of the bound. */
static double sound(const struct clime_alarm_rule *r) {
    return r->test == CLIME_ALARM_SPIKE || r->test == CLIME_ALARM_FALLEN ? 1 : is_low(r) ? r->limit + 1 : 0;
}

static double wrong(const struct clime_alarm_rule *r) {
    return r->test == CLIME_ALARM_UP_TO ? r->limit : is_low(r) ? r->limit / 2 : r->limit * 2 + 1;
}

/* Every row: not by what is sound, not a value too early, once however long it lasts, over when it is over, again when
 * it comes again. */
static void test_every_row(void **state) {
    struct fixture *f = *state;
    start(f, NULL);
    for (int id = 0; id < CLIME_ALARMS; id++) {
        const struct clime_alarm_rule *r = &clime_alarm_rules[id];
        for (int i = 0; i < CLIME_ALARM_RECENT; i++) value(f, id, sound(r));
        assert_string_equal(told(f, id).what, "");
        for (int i = 0; i < r->rise - 1; i++) value(f, id, wrong(r));
        assert_string_equal(told(f, id).what, "");
        value(f, id, sound(r)); /* not in a row */
        for (int i = 0; i < r->rise - 1; i++) value(f, id, wrong(r));
        assert_string_equal(told(f, id).what, "");
        for (int i = 0; i < 4; i++) value(f, id, wrong(r));
        assert_string_equal(told(f, id).what, "+");
        assert_non_null(strstr(told(f, id).cause, r->what));
        for (int i = 0; i < r->calm; i++) value(f, id, sound(r));
        assert_string_equal(told(f, id).what, "+-");
        for (int i = 0; i < r->rise; i++) value(f, id, wrong(r));
        for (int i = 0; i < r->calm; i++) value(f, id, sound(r));
        assert_string_equal(told(f, id).what, "+-+-");
    }
    stop(f);
}

/* A figure that swings about its limit is one cause. */
static void test_on_the_edge(void **state) {
    struct fixture *f = *state;
    start(f, NULL);
    for (int i = 0; i < 40; i++) {
        line(f, "rollout", "rollout/truncated_ratio", i % 4 == 3 ? 0.48 : 0.55);
        line(f, "perf", "perf/disk_free_ratio", i % 2 ? 0.021 : 0.02);
    }
    assert_string_equal(told(f, CLIME_ALARM_TRUNCATION).what, "+");
    assert_string_equal(told(f, CLIME_ALARM_DISK).what, "+");
    stop(f);
}

static void both(struct fixture *f, double deviation, double alike) {
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "rollout", 0, 1);
    clime_metrics_line_add(&m, "rollout/raw_reward_std", deviation);
    clime_metrics_line_add(&m, "rollout/zero_std_frac", alike);
    clime_alarms_line(f->alarms, clime_metrics_line_end(&m));
    clime_metrics_line_free(&m);
}

/* Rewards that are all alike make all groups alike: one alarm, the one that says more. */
static void test_one_cause_one_alarm(void **state) {
    struct fixture *f = *state;
    start(f, NULL);
    for (int i = 0; i < 10; i++) both(f, 0, 1);
    assert_string_equal(told(f, CLIME_ALARM_REWARDS_ALIKE).what, "+");
    assert_string_equal(told(f, CLIME_ALARM_GROUPS_ALIKE).what, "");
    for (int i = 0; i < 10; i++) both(f, 0.3, 1); /* groups differ from each other, not in themselves */
    assert_string_equal(told(f, CLIME_ALARM_REWARDS_ALIKE).what, "+-");
    assert_string_equal(told(f, CLIME_ALARM_GROUPS_ALIKE).what, "+");
    stop(f);
}

/* A restart knows what is raised and how far the windows were. */
static void test_restart(void **state) {
    struct fixture *f = *state;
    start(f, NULL);
    for (int i = 0; i < 6; i++) line(f, "rollout", "rollout/truncated_ratio", 0.9);
    for (int i = 0; i < CLIME_ALARM_FIRST; i++) line(f, "train", "train/grad_norm", 1);
    line(f, "perf", "perf/reward_time", 60); /* one of the two that it takes */
    clime_alarms_see(f->alarms, CLIME_ALARM_GAP, 1, "step 3: 1 of 9", NULL);
    stop(f);
    start(f, NULL);
    line(f, "rollout", "rollout/truncated_ratio", 0.9);
    clime_alarms_see(f->alarms, CLIME_ALARM_GAP, 1, "step 4: 1 of 9", NULL);
    assert_string_equal(told(f, CLIME_ALARM_TRUNCATION).what, "+");
    assert_string_equal(told(f, CLIME_ALARM_GAP).what, "+");
    assert_non_null(strstr(told(f, CLIME_ALARM_GAP).cause, "step 3: 1 of 9. "));
    line(f, "perf", "perf/reward_time", 60);
    assert_string_equal(told(f, CLIME_ALARM_REWARD_SLOW).what, "+");
    line(f, "train", "train/grad_norm", 25); /* against the median of before */
    assert_string_equal(told(f, CLIME_ALARM_GRADIENT_SPIKE).what, "+");
    stop(f);
    start(f, "truncation=off"); /* switched off: over */
    line(f, "rollout", "rollout/truncated_ratio", 0.9);
    assert_string_equal(told(f, CLIME_ALARM_TRUNCATION).what, "+-");
    stop(f);
    start(f, "truncation=0.95");
    line(f, "rollout", "rollout/truncated_ratio", 0.9);
    assert_string_equal(told(f, CLIME_ALARM_TRUNCATION).what, "+-");
    for (int i = 0; i < 3; i++) line(f, "rollout", "rollout/truncated_ratio", 0.96);
    assert_string_equal(told(f, CLIME_ALARM_TRUNCATION).what, "+-+");
    stop(f);
}

static void test_growing(void **state) {
    struct fixture *f = *state;
    start(f, NULL);
    for (int i = 1; i < 10; i++)
        clime_alarms_see_growing(f->alarms, CLIME_ALARM_REWARD_FAILS, i / 100.0, "a sample of rollout 0 failed");
    assert_string_equal(told(f, CLIME_ALARM_REWARD_FAILS).what, "+");
    for (int i = 1; i < 5; i++) /* the next rollout's first failures say nothing good */
        clime_alarms_see_growing(f->alarms, CLIME_ALARM_REWARD_FAILS, i / 100.0, "a sample of rollout 1 failed");
    assert_string_equal(told(f, CLIME_ALARM_REWARD_FAILS).what, "+");
    for (int i = 0; i < 2; i++) clime_alarms_see(f->alarms, CLIME_ALARM_REWARD_FAILS, 0, NULL, NULL);
    assert_string_equal(told(f, CLIME_ALARM_REWARD_FAILS).what, "+-");
    stop(f);
}

static void test_words(void **state) {
    (void)state;
    const struct {
        const char *word, *says;
    } wrong_words[] = {{"gapp=1", "no alarm is called gapp"},
                       {"gap", "NAME=NUMBER"},
                       {"gap=", "NAME=NUMBER"},
                       {"gap=x", "NAME=NUMBER"},
                       {"gap=1x", "NAME=NUMBER"},
                       {"=1", "no alarm"}};
    double limits[CLIME_ALARMS];
    for (size_t i = 0; i < CLIME_COUNT(wrong_words); i++) {
        struct clime_error e = {0};
        const char *word = wrong_words[i].word;
        const struct clime_opt_list words = {&word, 1};
        assert_int_equal(clime_alarm_limits(&words, false, limits, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, wrong_words[i].says));
    }
    struct clime_error e = {0};
    const char *right[] = {"gap=3", "servers-starved=0.9"};
    const struct clime_opt_list words = {right, 2};
    assert_int_equal(clime_alarm_limits(&words, false, limits, &e), CLIME_OK);
    assert_true(limits[CLIME_ALARM_GAP] == 3 && limits[CLIME_ALARM_SERVERS_STARVED] == 0.9);
    assert_true(limits[CLIME_ALARM_TRAINER_STARVED] != limits[CLIME_ALARM_TRAINER_STARVED]); /* NaN: off */
}

/* The manual's table is the program's. */
static void test_manual(void **state) {
    (void)state;
    static const char *const tests[] = {"above %g", "not above %g", "above %g x the median of the last 32",
                                        "not above %g x the mean of the first 8"};
    struct clime_buf manual, row;
    struct clime_error e = {0};
    clime_buf_init(&manual, 1 << 20);
    clime_buf_init(&row, 1 << 16);
    assert_int_equal(clime_buf_read_file(&manual, "docs/alarms.md", &e), CLIME_OK);
    clime_buf_addc(&manual, 0);
    for (int id = 0; id < CLIME_ALARMS; id++) {
        const struct clime_alarm_rule *r = &clime_alarm_rules[id];
        char bound[64];
        clime_buf_clear(&row);
        snprintf(bound, sizeof bound, tests[r->test], r->limit);
        clime_buf_printf(&row, "| `%s`%s | %s is %s | %d, %d | %s | %s |", r->name, r->async_only ? " (`--async`)" : "",
                         r->what, bound, r->rise, r->calm, r->means, r->advice);
        if (!strstr(manual.data, clime_buf_str(&row).ptr))
            fail_msg("docs/alarms.md lacks\n%s", clime_buf_str(&row).ptr);
    }
    clime_buf_free(&manual);
    clime_buf_free(&row);
}

/* ---- a command ---- */

static int n_lines(const char *path, const char *with) {
    char text[4096];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(text, sizeof text, file)) n += strstr(text, with) != NULL;
    if (file) fclose(file);
    return n;
}

static void test_command(void **state) {
    struct fixture *f = *state;
    struct clime_notify *n;
    struct clime_error e = {0};
    char command[512], path[80];
    snprintf(path, sizeof path, "%s/told", f->dir);
    snprintf(command, sizeof command, "echo noise; cat >> %s; echo >> %s; exit 3", path, path);
    assert_int_equal(clime_notify_open(command, NULL, &n, &e), CLIME_OK);
    for (int i = 0; i < 50; i++) clime_notify_send(n, "{\"alarm\":\"gap\"}");
    int64_t until = clime_now_us() + 60000000;
    while (n_lines(path, "{\"alarm\":\"gap\"}") < 20 && clime_now_us() < until) clime_sleep_us(20000);
    clime_notify_close(n);
    assert_int_equal(n_lines(path, "{\"alarm\":\"gap\"}"), 20); /* the rest was too many at once */
}

/* Neither who sends nor the end of the run waits for a command that hangs and does not read; it is killed with what it
 * started. */
static void test_command_that_hangs(void **state) {
    struct fixture *f = *state;
    struct clime_notify *n;
    struct clime_error e = {0};
    char command[512], path[80], text[32] = "";
    snprintf(path, sizeof path, "%s/pid", f->dir);
    snprintf(command, sizeof command, "sleep 1000 & echo $! > %s.tmp; mv %s.tmp %s; wait", path, path, path);
    assert_int_equal(clime_notify_open(command, NULL, &n, &e), CLIME_OK);
    char *big = malloc(1 << 20);
    memset(big, 'x', 1 << 20);
    big[(1 << 20) - 1] = 0;
    clime_notify_send(n, big); /* more than a pipe holds */
    free(big);
    int64_t until = clime_now_us() + 60000000;
    while (access(path, F_OK) && clime_now_us() < until) clime_sleep_us(20000);
    clime_notify_close(n); /* would not return */
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    int pid = (int)strtol(text, NULL, 10);
    while (!kill(pid, 0) && clime_now_us() < until) clime_sleep_us(20000); /* whoever is its parent now reaps it */
    snprintf(command, sizeof command, "/proc/%d/stat", pid);
    assert_true(kill(pid, 0) || n_lines(command, " Z ") == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_row, setup, teardown),
        cmocka_unit_test_setup_teardown(test_on_the_edge, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_cause_one_alarm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_growing, setup, teardown),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_manual),
        cmocka_unit_test_setup_teardown(test_command, setup, teardown),
        cmocka_unit_test_setup_teardown(test_command_that_hangs, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
