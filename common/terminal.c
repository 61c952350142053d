/* Asking the terminal (see terminal.h). Called by the help and by the progress display; no state. */
#include "common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define USUAL_COLUMNS 80 /* where the terminal does not say */
#define LEAST_COLUMNS 20 /* narrower ones are treated as this wide */

int clime_terminal_columns(void) {
    struct winsize w;
    if (!isatty(STDOUT_FILENO)) return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || w.ws_col == 0) return USUAL_COLUMNS;
    return w.ws_col < LEAST_COLUMNS ? LEAST_COLUMNS : w.ws_col;
}
