/* Alarms told to somebody: a shell command that gets one JSON object on its standard input, and a URL that gets it as
 * the body of a POST. On a thread of its own: a command that hangs or a URL that does not answer costs the run nothing.
 *
 * A command may take 30 s, then its process group is killed. A POST is tried three times where the failure may pass. At
 * most 20 messages at once and one every 30 s over time; what is more is counted in the log, and is in the ledger as
 * ever. Messages that were not told when the process ended are not told later.
 */
#ifndef CLIME_TRAINER_WATCH_ALARM_NOTIFY_H
#define CLIME_TRAINER_WATCH_ALARM_NOTIFY_H

#include "common/err.h"

struct clime_notify;

/* One may be NULL. Borrowed. CLIME_ERR_INPUT: the command names no program that there is. */
enum clime_err clime_notify_open(const char *command, const char *url, struct clime_notify **out,
                                 struct clime_error *e);
/* What is under way or waits gets 5 s. NULL is fine. */
void clime_notify_close(struct clime_notify *n);

void clime_notify_send(struct clime_notify *n, const char *json); /* any thread; never waits */

#endif
