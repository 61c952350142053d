/* Checks early that a shell line names an existing program. */
#ifndef CLIME_COMMON_OS_SHELL_H
#define CLIME_COMMON_OS_SHELL_H

#include "common/err.h"

/* option: as the user wrote it, "--rm-command". CLIME_ERR_INPUT: the line is empty, or its first word is neither a
 * /bin/sh command nor a program in PATH or at its path. Accepts a line that begins with anything but a plain word (an
 * assignment, a quote, a variable): the shell judges it when it runs. Any thread. */
enum clime_err clime_shell_check(const char *option, const char *line, struct clime_error *e);

#endif
