/* The alarms of a run: they look at every line of metrics and at what the loop tells them, and say once what is wrong,
 * why it matters and what to do, and once that it is over. Where: an event of kind "alarm" in the ledger (JSON:
 * docs/alarms.md), a line of the log, --alarm-command and --alarm-url (trainer/watch/alarm_notify.h).
 *
 * What is raised is what the ledger says, so a restart raises nothing twice; windows are filled from its metrics.
 *
 * Any thread, under one lock. Every function but open takes NULL: then nothing is watched.
 */
#ifndef CLIME_TRAINER_WATCH_ALARMS_H
#define CLIME_TRAINER_WATCH_ALARMS_H

#include "common/options/options.h"
#include "trainer/ledger/runs.h"
#include "trainer/watch/alarm_rules.h"

struct clime_alarm_options {
    struct clime_opt_list limits; /* --alarm: NAME=VALUE or NAME=off */
    const char *command, *url;    /* NULL = none */
};

/* CLIME_ERR_INPUT: a word that is no NAME=VALUE of the table. limits: NaN = off, as rows of asynchronous runs are in
 * others unless a word names them. */
enum clime_err clime_alarm_limits(const struct clime_opt_list *words, bool async, double limits[CLIME_ALARMS],
                                  struct clime_error *e);

/* The row that the detail of an event of kind "alarm" is of; -1 = of another version's. */
int clime_alarm_event(const char *detail, bool *raised);

struct clime_alarms;

/* After the run's record was opened. folder: the run's, for messages. Strings are borrowed. */
enum clime_err clime_alarms_open(const struct clime_alarm_options *o, bool async, struct clime_ledger *l,
                                 const struct clime_run *run, const char *folder, struct clime_alarms **out,
                                 struct clime_error *e);
/* Gives messages that are under way a moment. */
void clime_alarms_close(struct clime_alarms *a);

/* A line of metrics that is new. Not one that is only logged again. */
void clime_alarms_line(struct clime_alarms *a, const char *line);

/* A value of a row that has no figure. cause, advice: in place of the table's words when it is raised by this value, or
 * NULL. */
void clime_alarms_see(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause, const char *advice);

/* The same for a value that may only grow until it is final: it raises the row, but says nothing good of it. */
void clime_alarms_see_growing(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause);

/* The same words for the next value of a row that comes with a line. */
void clime_alarms_note(struct clime_alarms *a, enum clime_alarm id, const char *cause, const char *advice);

#endif
