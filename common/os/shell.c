/* Check of shell lines (see shell.h). Called when options are checked; owns nothing. Asks the shell, which knows its
 * built-ins and PATH; the word is passed as an argument, so no part of the line runs. */
#include "common/os/shell.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char PLAIN[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:[";
static const char ENDS[] = " \t\n;|&<>"; /* ends of a plain word */

extern char **environ;

static bool shell_knows(char *word) {
    char sh[] = "sh", c[] = "-c", line[] = "command -v \"$1\" >/dev/null 2>&1";
    char *const argv[] = {sh, c, line, sh, word, NULL};
    pid_t pid;
    int status;
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ)) return true; /* not a missing program */
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return true;
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

static enum clime_err check_path(const char *option, const char *path, struct clime_error *e) {
    struct stat st;
    if (stat(path, &st)) return clime_fail(e, CLIME_ERR_INPUT, "%s: %s: %s", option, path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return clime_fail(e, CLIME_ERR_INPUT, "%s: %s is a folder", option, path);
    if (access(path, X_OK)) return clime_fail(e, CLIME_ERR_INPUT, "%s: %s is not executable", option, path);
    return CLIME_OK;
}

enum clime_err clime_shell_check(const char *option, const char *line, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    line += strspn(line, " \t\n");
    if (!*line) return clime_fail(e, CLIME_ERR_INPUT, "%s: the command is empty", option);
    size_t n = strspn(line, PLAIN);
    bool of_a_file = (line[n] == '<' || line[n] == '>') && strspn(line, "0123456789") == n; /* 2>log */
    if (!n || of_a_file || (line[n] && !strchr(ENDS, line[n]))) return CLIME_OK;
    char *word = xstrndup(line, n);
    if (strchr(word, '/'))
        rc = check_path(option, word, e);
    else if (!shell_knows(word))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: there is no command %s: not in PATH, and none of /bin/sh", option,
                        word);
    free(word);
    return rc;
}
