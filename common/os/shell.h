/* Whether a line that a shell is to run names a program that there is: known before the first use, not after it. */
#ifndef CLIME_COMMON_OS_SHELL_H
#define CLIME_COMMON_OS_SHELL_H

#include "common/err.h"

/* option: as the user wrote it, "--rm-command". CLIME_ERR_INPUT: the line is empty, or its first word is neither a
 * command of /bin/sh nor a program in PATH or at the path that it names. A line that begins with more than a plain word
 * (an assignment, a quote, a variable) is the shell's to judge when it runs. Any thread. */
enum clime_err clime_shell_check(const char *option, const char *line, struct clime_error *e);

#endif
