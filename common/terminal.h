/* The terminal that standard output is shown on, if any. Any thread. */
#ifndef CLIME_COMMON_TERMINAL_H
#define CLIME_COMMON_TERMINAL_H

/* Its width now; 0 when standard output is no terminal. */
int clime_terminal_columns(void);

#endif
