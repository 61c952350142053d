/* Alarm options, shared by clime-train rl, sft and dpo (docs/alarms.md). Called by their parsers; pure. None affects
 * the weights. */
#ifndef CLIME_TRAINER_OPTIONS_ALARMS_H
#define CLIME_TRAINER_OPTIONS_ALARMS_H

#include "trainer/watch/alarms.h"

#define CLIME_ALARM_ROWS 3

/* Writes CLIME_ALARM_ROWS rows that fill o; returns their number. */
int clime_alarm_rows(struct clime_alarm_options *o, struct clime_opt *t);
bool clime_alarm_is_option(const char *name);

#endif
