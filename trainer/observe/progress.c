/* Drawing the progress display. Main thread; owns nothing but the cursor's line.
 * A log file must not be full of carriage returns, so what is not a terminal gets whole lines, and few of them. */
#include "trainer/observe/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/clock.h"

#define LIVE_PAUSE_US 200000
#define PLAIN_PAUSE_US 60000000

void clime_progress_begin(struct clime_progress *p) {
    *p = (struct clime_progress){.terminal = isatty(STDOUT_FILENO), .last_plain_us = clime_now_us()};
}

static int columns(void) {
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

void clime_progress_live(struct clime_progress *p, const char *fmt, ...) {
    char text[256];
    int64_t now = clime_now_us();
    if (p->quiet) return;
    if (p->terminal ? now < p->next_us : now - p->last_plain_us < PLAIN_PAUSE_US) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->next_us = now + LIVE_PAUSE_US;
    p->last_plain_us = now;
    if (!p->terminal) {
        printf("%s\n", text);
    } else {
        int n = (int)strlen(text), most = columns() - 1;
        if (n > most) n = most;
        printf("\r%.*s%*s", n, text, p->width > n ? p->width - n : 0, "");
        p->width = n;
    }
    fflush(stdout);
}

void clime_progress_line(struct clime_progress *p, const char *fmt, ...) {
    if (p->quiet) return;
    if (p->width) printf("\r%*s\r", p->width, "");
    p->width = 0;
    p->last_plain_us = clime_now_us();
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}
