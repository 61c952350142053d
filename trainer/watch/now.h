/* What a trainer waits for now (common/os/waits.h), for who asks from outside: SIGUSR1 makes it write RUN/waits.txt,
 * and the log. clime-train report --now RUN sends the signal and prints the file.
 */
#ifndef CLIME_TRAINER_WATCH_NOW_H
#define CLIME_TRAINER_WATCH_NOW_H

#include "common/err.h"

struct clime_now;

/* The trainer's side, once in a process: a thread of its own, so that an answer comes whatever the others wait for.
 * lock_fd: RUN/lock, which gets the process id. */
enum clime_err clime_now_open(const char *run, int lock_fd, struct clime_now **out, struct clime_error *e);
void clime_now_close(struct clime_now *n); /* NULL is fine */

/* The other side: what the trainer of the run answers; the caller frees *text. CLIME_ERR_NOT_FOUND: none works on it.
 * CLIME_ERR_TIMEOUT: it runs and gives no answer. */
enum clime_err clime_now_ask(const char *run, char **text, struct clime_error *e);

#endif
