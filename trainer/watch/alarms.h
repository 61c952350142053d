/* Alarms of a run: check every line of metrics and values from the loop, and report once what is wrong, why it matters
 * and what to do, and once that it is over. Reports are an event of kind "alarm" in the ledger (JSON: docs/alarms.md),
 * a log line, --alarm-command and --alarm-url (trainer/watch/alarm_notify.h).
 *
 * The raised state is the ledger's, so a restart raises nothing twice; windows are refilled from its metrics.
 *
 * Any thread, under one lock. Every function except open accepts NULL: then nothing is watched. */
#ifndef CLIME_TRAINER_WATCH_ALARMS_H
#define CLIME_TRAINER_WATCH_ALARMS_H

#include "common/options/options.h"
#include "trainer/ledger/runs.h"
#include "trainer/watch/alarm_rules.h"

struct clime_alarm_options {
    struct clime_opt_list limits; /* --alarm: NAME=VALUE or NAME=off */
    const char *command, *url;    /* NULL = none */
};

/* Parses --alarm. CLIME_ERR_INPUT: not NAME=VALUE of the table. limits: NaN = off, the default for async_only rows in
 * synchronous runs. */
enum clime_err clime_alarm_limits(const struct clime_opt_list *words, bool async, double limits[CLIME_ALARMS],
                                  struct clime_error *e);

/* The row of an event of kind "alarm", by its detail; -1 = unknown, from another version. */
int clime_alarm_event(const char *detail, bool *raised);

struct clime_alarms;

/* Call after the run's record is open. folder: the run's, for messages. Strings are borrowed. */
enum clime_err clime_alarms_open(const struct clime_alarm_options *o, bool async, struct clime_ledger *l,
                                 const struct clime_run *run, const char *folder, struct clime_alarms **out,
                                 struct clime_error *e);
/* Waits a moment for pending messages. */
void clime_alarms_close(struct clime_alarms *a);

/* Checks a new line of metrics. Not for lines that are only logged again. */
void clime_alarms_line(struct clime_alarms *a, const char *line);

/* Checks a value of a row without a figure. cause, advice: replace the table's text if this value raises it, or NULL.
 */
void clime_alarms_see(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause, const char *advice);

/* The same for a value that grows until final: it can raise the row but not clear it. */
void clime_alarms_see_growing(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause);

/* Sets cause and advice for a row's next value from a line. */
void clime_alarms_note(struct clime_alarms *a, enum clime_alarm id, const char *cause, const char *advice);

#endif
