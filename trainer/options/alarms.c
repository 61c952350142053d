/* Alarm options (alarms.h). */
#include "trainer/options/alarms.h"

#include <string.h>

int clime_alarm_rows(struct clime_alarm_options *o, struct clime_opt *t) {
    const struct clime_opt rows[CLIME_ALARM_ROWS] = {
        {"alarm", CLIME_OPT_LIST, &o->limits, NULL, "NAME=VALUE",
         "another limit for an alarm, or NAME=off (docs/alarms.md has the names, causes and limits)"},
        {"alarm-command", CLIME_OPT_STRING, &o->command, NULL, "COMMAND",
         "run this shell command for every alarm that is raised or over, with a JSON object on its standard input"},
        {"alarm-url", CLIME_OPT_STRING, &o->url, NULL, "URL", "POST the same object there"},
    };
    memcpy(t, rows, sizeof rows);
    return CLIME_ALARM_ROWS;
}

bool clime_alarm_is_option(const char *name) {
    return !strcmp(name, "alarm") || !strcmp(name, "alarm-command") || !strcmp(name, "alarm-url");
}
