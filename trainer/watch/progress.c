/* Progress display. Main thread, except the signal handler; owns only the cursor's line. Log files must not fill with
 * carriage returns, so anything but a terminal gets a few whole lines. The log (common/log.h) clears the live line
 * before it writes to the same terminal. */
#include "trainer/watch/progress.h"

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
#define ERASE "\r\x1b[K" /* to the line's beginning, then clear to its end */
#define HEAD 9           /* columns of a line's first word with its spaces: no break there */
#define INDENT 4         /* of continuation lines */
#define MOST_BAR 20      /* columns between its ends; less on a narrow terminal */

void clime_progress_begin(struct clime_progress *p) {
    *p = (struct clime_progress){.columns = clime_terminal_columns(),
                                 .colours = clime_terminal_colours(STDOUT_FILENO),
                                 .last_plain_us = clime_now_us()};
}

void clime_progress_count(struct clime_progress *p, int64_t done, int64_t of) {
    if (!p->first_us) {
        p->first = done;
        p->first_us = clime_now_us();
    }
    p->done = done;
    p->of = of;
}

/* Writes "4 min", for the remaining rollouts at this process's mean speed. */
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

/* Bytes of text that fit a line of so many columns: all, else whole parts, else a prefix. One character per column. */
static int fitting(const char *text, int columns) {
    int at = 0, last = 0;
    for (; text[at] && (columns > 0 || (text[at] & 0xc0) == 0x80); at++) {
        if ((text[at] & 0xc0) != 0x80) columns--;
        if (text[at] == ' ' && text[at + 1] == ' ' && at > HEAD && text[at - 1] != ' ') last = at;
    }
    bool between = text[at] == ' ' && text[at + 1] == ' ';
    return !text[at] || between || !last ? at : last;
}

/* "[=====>----] ": progress of the run; empty if unknown. */
static void draw_bar(const struct clime_progress *p, char out[MOST_BAR + 4]) {
    int width = p->columns / 5 < 6 ? 6 : p->columns / 5 < MOST_BAR ? p->columns / 5 : MOST_BAR;
    int full = p->of > 0 ? (int)(p->done * width / p->of) : 0, at = 0;
    if (p->columns && p->of > 0) {
        out[at++] = '[';
        for (int i = 0; i < width; i++) out[at++] = i < full ? '=' : i == full ? '>' : '-';
        out[at++] = ']';
        out[at++] = ' ';
    }
    out[at] = 0;
}

void clime_progress_live(struct clime_progress *p, const char *fmt, ...) {
    char text[LINE_BYTES], bar[MOST_BAR + 4], count[CLIME_PROGRESS_COUNT] = "";
    int64_t now = clime_now_us();
    if (p->quiet) return;
    if (p->columns ? now < p->next_us : now - p->last_plain_us < PLAIN_PAUSE_US) return;
    p->next_us = now + LIVE_PAUSE_US;
    p->last_plain_us = now;
    p->columns = clime_terminal_columns(); /* the width may have changed */
    draw_bar(p, bar);
    if (p->of > 0) clime_progress_count_text(p, count);
    int head = snprintf(text, sizeof text, "%s%s%s", bar, count, *count ? "  " : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + head, sizeof text - (size_t)head, fmt, ap);
    va_end(ap);
    p->live = p->columns > 0;
    if (p->live) {
        int n = fitting(text, p->columns - 1), n_bar = (int)strlen(bar);
        bool coloured = p->colours && n_bar > 0 && n >= n_bar;
        printf(ERASE "%s%.*s%s%.*s", coloured ? CLIME_TERMINAL_GREEN : "", coloured ? n_bar : 0, text,
               coloured ? CLIME_TERMINAL_PLAIN : "", coloured ? n - n_bar : n, text + (coloured ? n_bar : 0));
    } else {
        printf("%s\n", text);
    }
    fflush(stdout);
}

/* Highlights a line's first word, its topic. */
static void put_head(const struct clime_progress *p, const char *text, int n) {
    int word = (int)strcspn(text, " ");
    if (!p->colours || word == 0 || word > n || text[word] != ' ' || text[word + 1] != ' ') word = 0;
    if (word) printf(CLIME_TERMINAL_BOLD "%.*s" CLIME_TERMINAL_PLAIN, word, text);
    printf("%.*s\n", n - word, text + word);
}

static void put(struct clime_progress *p, const char *text, bool whole) {
    p->columns = clime_terminal_columns();
    if (p->live) printf(ERASE);
    p->live = false;
    p->last_plain_us = clime_now_us();
    int n = p->columns ? fitting(text, p->columns - 1) : (int)strlen(text);
    put_head(p, text, n);
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
    raise(number); /* the handler was reset: the process ends as usual */
}

void clime_progress_say_at_interrupt(void) {
    struct sigaction a = {.sa_handler = interrupted, .sa_flags = (int)SA_RESETHAND};
    CHECK(sigaction(SIGINT, &a, NULL) == 0);
}
