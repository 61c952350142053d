/* Line logger (see log.h). Any thread; owns the two globals below, which main sets before threads start.
 *
 * A line is built on the stack (clime_log_whole: on the heap) and sent with one write(2), so that threads and processes
 * that share a terminal do not mix lines. Control bytes become '?': text from a client cannot forge a line.
 */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/terminal.h"

static const char *program_name = "clime";
static enum clime_log_level lowest = CLIME_LOG_INFO;

void clime_log_open(const char *program, enum clime_log_level level) {
    program_name = program;
    lowest = level;
}

/* Writes a line's prefix; returns its length. */
static size_t put_head(char *line, size_t size, enum clime_log_level level) {
    static const char erase[] = "\r\x1b[K"; /* clears a progress display's line on a terminal */
    char when[32];
    clime_wall_format(clime_wall_us(), when);
    int clear = isatty(STDERR_FILENO) ? (int)sizeof erase - 1 : 0;
    const char *colour = level == CLIME_LOG_ERROR ? CLIME_TERMINAL_RED : CLIME_TERMINAL_YELLOW, *plain = "";
    if (level < CLIME_LOG_WARN || !clime_terminal_colours(STDERR_FILENO))
        colour = "";
    else
        plain = CLIME_TERMINAL_PLAIN;
    int n = snprintf(line, size, "%.*s%s%s %c %s:%s ", clear, erase, colour, when, "DIWE"[level], program_name, plain);
    return (size_t)n < size ? (size_t)n : size - 1;
}

/* Sends bytes at..end; there is room for a newline after them. */
static void send_line(char *line, size_t at, size_t end) {
    for (size_t i = at; i < end; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    line[end++] = '\n';
    /* A logger has nowhere to report its own failure. */
    for (ssize_t n; end > 0 && (n = write(STDERR_FILENO, line, end)) > 0; line += n) end -= (size_t)n;
}

void clime_log(enum clime_log_level level, const char *fmt, ...) {
    if (level < lowest) return;
    char line[2048];
    size_t at = put_head(line, sizeof line - 1, level);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + at, sizeof line - 1 - at, fmt, ap);
    va_end(ap);
    size_t end = n > 0 ? at + (size_t)n : at;
    send_line(line, at, end > sizeof line - 2 ? sizeof line - 2 : end);
}

void clime_log_whole(enum clime_log_level level, const char *text, size_t len) {
    if (level < lowest) return;
    char *line = malloc(256 + len + 1);
    if (!line) return;
    size_t at = put_head(line, 256, level);
    memcpy(line + at, text, len);
    send_line(line, at, at + len);
    free(line);
}
