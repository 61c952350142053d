/* Terminal width and colours, and whether all of standard output was written. Any thread. */
#ifndef CLIME_COMMON_TERMINAL_H
#define CLIME_COMMON_TERMINAL_H

#include <stdbool.h>

#include "common/err.h"

/* Current width of standard output; 0 when it is no terminal, or one that cannot move its cursor (TERM=dumb). */
int clime_terminal_columns(void);

/* True when fd is a terminal and NO_COLOR is unset (no-color.org). */
bool clime_terminal_colours(int fd);

/* Call at the end of a command that prints a result: an error when part of the output was lost. */
enum clime_err clime_stdout_whole(struct clime_error *e);

#define CLIME_TERMINAL_BOLD "\x1b[1m"
#define CLIME_TERMINAL_GREEN "\x1b[32m"
#define CLIME_TERMINAL_YELLOW "\x1b[33m"
#define CLIME_TERMINAL_RED "\x1b[31m"
#define CLIME_TERMINAL_PLAIN "\x1b[0m"

#endif
