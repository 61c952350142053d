/* Current waits of a trainer (common/os/waits.h), on request: SIGUSR1 makes it write RUN/waits.txt and the log.
 * clime-train report --now RUN sends the signal and prints the file. */
#ifndef CLIME_TRAINER_WATCH_NOW_H
#define CLIME_TRAINER_WATCH_NOW_H

#include "common/err.h"

struct clime_now;

/* Trainer's side, once per process: its own thread, so it answers whatever the others wait for. lock_fd: RUN/lock,
 * which gets the process id. */
enum clime_err clime_now_open(const char *run, int lock_fd, struct clime_now **out, struct clime_error *e);
void clime_now_close(struct clime_now *n); /* NULL is fine */

/* Reader's side: the answer of the run's trainer; the caller frees *text. CLIME_ERR_NOT_FOUND: no trainer runs.
 * CLIME_ERR_TIMEOUT: it does not answer. */
enum clime_err clime_now_ask(const char *run, char **text, struct clime_error *e);

#endif
