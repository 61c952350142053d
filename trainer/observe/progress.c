/* Drawing the progress display. Main thread, but for the signal's handler; owns nothing but the cursor's line.
 * A log file must not be full of carriage returns, so what is not a terminal gets whole lines, and few of them. The log
 * (common/log.h) clears the live line by itself before it writes to the same terminal. */
#include "trainer/observe/progress.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/terminal.h"

#define LIVE_PAUSE_US 200000
#define PLAIN_PAUSE_US 60000000
#define LINE_BYTES 1024
#define ERASE "\r\x1b[K" /* to the line's beginning, and everything behind it away */
#define HEAD 9           /* columns of a line's first word with its spaces: it is not broken there */
#define INDENT 4         /* of what goes on in the next line */

void clime_progress_begin(struct clime_progress *p) {
    *p = (struct clime_progress){.columns = clime_terminal_columns(), .last_plain_us = clime_now_us()};
}

void clime_progress_count(struct clime_progress *p, int64_t done, int64_t of) {
    if (!p->first_us) {
        p->first = done;
        p->first_us = clime_now_us();
    }
    p->done = done;
    p->of = of;
}

/* "4 min", for the rollouts that are left at the mean speed of those that this process has done. */
static bool time_left(const struct clime_progress *p, char out[32]) {
    int64_t n = p->done - p->first;
    if (n < 1 || p->done >= p->of) return false;
    double s = (double)(clime_now_us() - p->first_us) / 1e6 / (double)n * (double)(p->of - p->done);
    if (s < 100)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 100 * 60)
        snprintf(out, 32, "%.0f min", s / 60);
    else
        snprintf(out, 32, "%.1f h", s / 3600);
    return true;
}

void clime_progress_count_text(const struct clime_progress *p, char out[CLIME_PROGRESS_COUNT]) {
    char left[32];
    bool known = time_left(p, left);
    snprintf(out, CLIME_PROGRESS_COUNT, known ? "%" PRId64 " of %" PRId64 ", %s left" : "%" PRId64 " of %" PRId64,
             p->done, p->of, left);
}

/* Bytes of text that a line of so many columns holds: all, or whole parts, or what fits. */
static int fitting(const char *text, int columns) {
    int n = (int)strlen(text), last = 0;
    if (n <= columns) return n;
    for (int i = 1; i <= columns; i++)
        if (text[i] == ' ' && text[i + 1] == ' ' && text[i - 1] != ' ' && i > HEAD) last = i;
    return last ? last : columns;
}

void clime_progress_live(struct clime_progress *p, const char *fmt, ...) {
    char text[LINE_BYTES];
    int64_t now = clime_now_us();
    if (p->quiet) return;
    if (p->columns ? now < p->next_us : now - p->last_plain_us < PLAIN_PAUSE_US) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->next_us = now + LIVE_PAUSE_US;
    p->last_plain_us = now;
    p->columns = clime_terminal_columns();
    p->live = p->columns > 0;
    if (p->live)
        printf(ERASE "%.*s", fitting(text, p->columns - 1), text);
    else
        printf("%s\n", text);
    fflush(stdout);
}

static void put(struct clime_progress *p, const char *text, bool whole) {
    p->columns = clime_terminal_columns();
    if (p->live) printf(ERASE);
    p->live = false;
    p->last_plain_us = clime_now_us();
    int n = p->columns ? fitting(text, p->columns - 1) : (int)strlen(text);
    printf("%.*s\n", n, text);
    while (whole && text[n]) {
        text += n + (int)strspn(text + n, " ");
        n = fitting(text, p->columns - 1 - INDENT);
        printf("%*s%.*s\n", INDENT, "", n, text);
    }
    fflush(stdout);
}

static void say(struct clime_progress *p, bool whole, const char *fmt, va_list ap) {
    char text[LINE_BYTES];
    vsnprintf(text, sizeof text, fmt, ap);
    if (!p->quiet) put(p, text, whole);
}

void clime_progress_row(struct clime_progress *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(p, false, fmt, ap);
    va_end(ap);
}

void clime_progress_line(struct clime_progress *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(p, true, fmt, ap);
    va_end(ap);
}

static void interrupted(int number) {
    static const char words[] = "interrupted: what is finished is recorded, and the same command goes on from there\n";
    if (isatty(STDERR_FILENO) && write(STDERR_FILENO, "\n" ERASE, strlen("\n" ERASE)) < 0) return;
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) return;
    raise(number); /* the handler is reset: the process ends as it always has */
}

void clime_progress_say_at_interrupt(void) {
    struct sigaction a = {.sa_handler = interrupted, .sa_flags = (int)SA_RESETHAND};
    CHECK(sigaction(SIGINT, &a, NULL) == 0);
}
