/* Children: started, watched, started again; what dies at every start is an error; none outlives us. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/os/child.h"
#include "common/os/files.h"

#define LIMIT_US 30000000

static char folder[] = "/tmp/clime-child-XXXXXX";

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

static char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int64_t read_number(const char *name) {
    char text[32] = "";
    int fd = open(in_folder(name), O_RDONLY);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && text[n - 1] == '\n' ? atoll(text) : -1;
}

static int64_t await_number(const char *name) {
    int64_t until = clime_now_us() + LIMIT_US, v;
    while ((v = read_number(name)) < 0 && clime_now_us() < until) clime_sleep_us(2000);
    return v;
}

/* Polls until the child has died n times in all or an error; returns how often it died. */
static int poll_deaths(struct clime_child *c, int n, struct clime_error *e) {
    int deaths = 0;
    bool died;
    int64_t until = clime_now_us() + LIMIT_US;
    e->code = CLIME_OK;
    while (deaths < n && clime_now_us() < until) {
        enum clime_err rc = clime_child_poll(c, &died, e);
        deaths += died;
        if (rc) break;
        clime_sleep_us(1000);
    }
    return deaths;
}

static void test_dies_at_every_start(void **state) {
    char *log = xstrdup(in_folder("quick.log"));
    const struct clime_child_options o = {
        .name = "quick", .line = "echo why it ended; exit 3", .log_file = log, .steady_us = 3000000};
    struct clime_child c;
    struct clime_error e;
    (void)state;
    clime_child_init(&c, &o);
    assert_int_equal(poll_deaths(&c, 100, &e), 5);
    assert_int_equal(e.code, CLIME_ERR_UNAVAILABLE);
    assert_non_null(strstr(e.msg, "quick exited with code 3, 5 times in a row"));
    assert_non_null(strstr(e.msg, "why it ended"));
    assert_true(c.restart_us > clime_now_us()); /* each pause is longer than the one before */
    assert_int_equal(c.n_starts, 5);
    clime_child_stop(&c);
    clime_child_free(&c);
    free(log);
}

/* The pauses grow when it is killed before it is up, and no error comes of it. */
static void test_killed_at_every_start(void **state) {
    const struct clime_child_options o = {.name = "killed", .line = "sleep 100", .up_limit_us = -1};
    struct clime_child c;
    struct clime_error e;
    bool died;
    int64_t last = 0;
    (void)state;
    clime_child_init(&c, &o);
    for (int i = 0; i < 4; i++) {
        int64_t until = clime_now_us() + LIMIT_US;
        while (c.state == CLIME_CHILD_DOWN && clime_now_us() < until)
            assert_int_equal(clime_child_poll(&c, &died, &e), CLIME_OK);
        clime_child_kill(&c);
        assert_int_equal(poll_deaths(&c, 1, &e), 1);
        assert_int_equal(e.code, CLIME_OK);
        assert_int_equal(c.n_early_kills, i + 1);
        int64_t pause = c.restart_us - clime_now_us();
        assert_true(pause > last);
        last = pause;
    }
    clime_child_stop(&c);
    clime_child_free(&c);
}

static void test_not_up_in_time(void **state) {
    const struct clime_child_options o = {.name = "slow", .line = "sleep 100", .up_limit_us = 50000};
    struct clime_child c;
    struct clime_error e;
    (void)state;
    clime_child_init(&c, &o);
    assert_int_equal(poll_deaths(&c, 1, &e), 0);
    assert_int_equal(e.code, CLIME_ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "waiting for slow to come up"));
    assert_int_equal(poll_deaths(&c, 1, &e), 1); /* it was killed */
    clime_child_stop(&c);
    clime_child_free(&c);
}

static void test_talks(void **state) {
    const char *const vars[] = {"CLIME_WORD=again", "HOME=/nowhere", "CLIME_API_KEY=its own", NULL};
    const struct clime_child_options o = {.name = "echo",
                                          .line = "echo \"$HOME $CLIME_WORD $(ulimit -Sn)\"; "
                                                  "echo \"$CLIME_API_KEY,$CLIME_FLEET_API_KEY,$OTHER_API_KEY\"; "
                                                  "while read x; do echo "
                                                  "\"$x\"; done",
                                          .vars = vars,
                                          .talk = true};
    struct clime_child c;
    struct clime_error e;
    char text[256] = "", want[64];
    size_t n = 0;
    int64_t until = clime_now_us() + LIMIT_US;
    (void)state;
    setenv("CLIME_API_KEY", "ours", 1); /* ours are no child's */
    setenv("CLIME_FLEET_API_KEY", "ours", 1);
    setenv("OTHER_API_KEY", "not ours", 1);
    clime_child_init(&c, &o);
    assert_int_equal(clime_child_poll(&c, NULL, &e), CLIME_OK);
    assert_int_equal(write(c.to, "line\n", 5), 5);
    while (!strstr(text, "line\n") && clime_now_us() < until) {
        ssize_t got = read(c.from, text + n, sizeof text - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    snprintf(want, sizeof want, "/nowhere again %lld\nits own,,not ours\nline\n", (long long)clime_files_given());
    assert_string_equal(text, want);
    clime_child_stop(&c);
    clime_child_free(&c);
}

static bool gone(int64_t pid) {
    int64_t until = clime_now_us() + LIMIT_US;
    while (kill((pid_t)pid, 0) == 0 && clime_now_us() < until) {
        char path[64], stat[256] = "";
        snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
        int fd = open(path, O_RDONLY);
        if (fd < 0) break;
        if (read(fd, stat, sizeof stat - 1) > 0 && strstr(stat, ") Z")) {
            close(fd);
            return true; /* dead, and whoever should reap it does not */
        }
        close(fd);
        clime_sleep_us(2000);
    }
    return kill((pid_t)pid, 0) != 0;
}

/* A shell's line, and what it left in the background, end with whoever started it, killed in any way. */
static void test_ends_with_its_parent(void **state) {
    char *line = xasprintf("sleep 100 & echo $! > %s/back; echo $$ > %s/front; sleep 100; true", folder, folder);
    const struct clime_child_options o = {.name = "orphan", .line = line};
    (void)state;
    pid_t parent = fork();
    if (parent == 0) {
        struct clime_child c;
        struct clime_error e;
        clime_child_init(&c, &o);
        clime_child_poll(&c, NULL, &e);
        for (;;) pause();
    }
    int64_t back = await_number("back"), front = await_number("front");
    assert_true(back > 0 && front > 0);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    assert_true(gone(front) && gone(back));
    free(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_with_its_parent),
        cmocka_unit_test(test_dies_at_every_start),
        cmocka_unit_test(test_killed_at_every_start),
        cmocka_unit_test(test_not_up_in_time),
        cmocka_unit_test(test_talks),
    };
    signal(SIGPIPE, SIG_IGN);
    clime_files_raise();
    return cmocka_run_group_tests_name("child", tests, setup, teardown);
}
