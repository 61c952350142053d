/* Terminal queries (see terminal.h). Called by the help, the log, progress displays, and commands at exit; no state. */
#include "common/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define USUAL_COLUMNS 80 /* when the terminal reports none */
#define LEAST_COLUMNS 20 /* lower bound for narrower terminals */

static bool is_dumb(void) {
    const char *term = getenv("TERM");
    return term && !strcmp(term, "dumb");
}

bool clime_terminal_colours(int fd) {
    const char *no = getenv("NO_COLOR");
    return isatty(fd) && !is_dumb() && !(no && *no);
}

int clime_terminal_columns(void) {
    struct winsize w;
    if (!isatty(STDOUT_FILENO) || is_dumb()) return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || w.ws_col == 0) return USUAL_COLUMNS;
    return w.ws_col < LEAST_COLUMNS ? LEAST_COLUMNS : w.ws_col;
}

enum clime_err clime_stdout_whole(struct clime_error *e) {
    if (!fflush(stdout) && !ferror(stdout)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_IO, "standard output is not whole: it is closed, or the disk is full");
}
