/* Lines for a shell: what cannot be started is found before it is run, and nothing else is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os/shell.h"

static char script[64];

static int set_up(void **state) {
    (void)state;
    snprintf(script, sizeof script, "/tmp/clime-shell-XXXXXX");
    int fd = mkstemp(script);
    return fd < 0 || close(fd) ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    return unlink(script);
}

static void refused(const char *line, const char *says) {
    struct clime_error e = {0};
    assert_int_equal(clime_shell_check("--rm-command", line, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "--rm-command"));
    if (!strstr(e.msg, says)) fail_msg("%s: %s", line, e.msg);
}

static void taken(const char *line) {
    struct clime_error e = {0};
    if (clime_shell_check("--rm-command", line, &e)) fail_msg("%s: %s", line, e.msg);
}

static void what_is_not_there(void **state) {
    (void)state;
    refused("no-such-program-of-ours --x", "no command no-such-program-of-ours");
    refused("no-such-program-of-ours|cat", "no command no-such-program-of-ours");
    refused("/no/such/program", "No such file");
    refused("  ", "empty");
    refused("/tmp x", "is a folder");
    refused(script, "is not executable");
}

static void what_is_there(void **state) {
    (void)state;
    assert_int_equal(chmod(script, 0700), 0);
    taken(script);
    static const char *const lines[] = {"cat",
                                        "  cat >/dev/null",
                                        "while read -r line; do echo; done",
                                        "exec cat",
                                        ": nothing",
                                        "[ -e x ]; cat",
                                        "/bin/cat;",
                                        "exit 1",
                                        "X=1 no-such-program-of-ours",
                                        "$PROGRAM",
                                        "'a program'",
                                        "(cat)",
                                        "2>/dev/null cat",
                                        "no-such\\ program x",
                                        "~/program"};
    for (size_t i = 0; i < CLIME_COUNT(lines); i++) taken(lines[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_not_there), cmocka_unit_test(what_is_there)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
