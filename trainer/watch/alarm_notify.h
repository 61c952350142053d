/* Alarm notifications: a shell command that gets one JSON object on standard input, and a URL that gets it as the body
 * of a POST. On its own thread: a hanging command or URL does not delay the run.
 *
 * A command's process group is killed after 30 s. A POST is tried three times on transient failures. Rate limit: 20
 * messages at once and one every 30 s over time; the rest are counted in the log, and stay in the ledger. Messages not
 * sent when the process ends are dropped. */
#ifndef CLIME_TRAINER_WATCH_ALARM_NOTIFY_H
#define CLIME_TRAINER_WATCH_ALARM_NOTIFY_H

#include "common/err.h"

struct clime_notify;

/* Either may be NULL. Borrowed. CLIME_ERR_INPUT: the command's program does not exist. */
enum clime_err clime_notify_open(const char *command, const char *url, struct clime_notify **out,
                                 struct clime_error *e);
/* Waits up to 5 s for pending messages. NULL is fine. */
void clime_notify_close(struct clime_notify *n);

void clime_notify_send(struct clime_notify *n, const char *json); /* any thread; never waits */

#endif
