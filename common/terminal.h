/* Standard output: the terminal that it is shown on, if any; its colours; whether all of it got there. Any thread. */
#ifndef CLIME_COMMON_TERMINAL_H
#define CLIME_COMMON_TERMINAL_H

#include <stdbool.h>

#include "common/err.h"

/* Its width now; 0 when standard output is no terminal, or one that cannot move its cursor (TERM=dumb). */
int clime_terminal_columns(void);

/* Whether a descriptor is a terminal that is to be written to in colours: not where NO_COLOR is set (no-color.org). */
bool clime_terminal_colours(int fd);

/* At the end of a command whose output is what it was run for: an error where a part of it was lost. */
enum clime_err clime_stdout_whole(struct clime_error *e);

#define CLIME_TERMINAL_BOLD "\x1b[1m"
#define CLIME_TERMINAL_GREEN "\x1b[32m"
#define CLIME_TERMINAL_YELLOW "\x1b[33m"
#define CLIME_TERMINAL_RED "\x1b[31m"
#define CLIME_TERMINAL_PLAIN "\x1b[0m"

#endif
