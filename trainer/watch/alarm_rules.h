/* Alarm rules: a table of conditions on a run's figures, and the judge that checks one value after another. Pure; the
 * caller owns the state.
 *
 * Nouns
 *   figure   a member of a line of metrics (trainer/watch/metrics_log.h). Rows without one are fed by code
 *            (clime_alarms_see).
 *   bound    what a value is compared with: the limit, or the limit times the median so far (spike) or the initial mean
 *            (fallen).
 *   raised   `rise` values in a row were bad. Cleared after `calm` good ones in a row, a tenth away from the bound: a
 *            figure at the bound raises one alarm, not many. */
#ifndef CLIME_TRAINER_WATCH_ALARM_RULES_H
#define CLIME_TRAINER_WATCH_ALARM_RULES_H

#include <stdbool.h>
#include <stdint.h>

enum clime_alarm {
    CLIME_ALARM_REWARDS_ALIKE,
    CLIME_ALARM_GROUPS_ALIKE,
    CLIME_ALARM_ENTROPY,
    CLIME_ALARM_TRUNCATION,
    CLIME_ALARM_LENGTHS,
    CLIME_ALARM_STALENESS,
    CLIME_ALARM_GAP,
    CLIME_ALARM_ROUTING,
    CLIME_ALARM_CLIPPED,
    CLIME_ALARM_GRADIENT_SPIKE,
    CLIME_ALARM_GRADIENT_BAD,
    CLIME_ALARM_GROUP_BAD,
    CLIME_ALARM_TRAINER_STARVED,
    CLIME_ALARM_SERVERS_STARVED,
    CLIME_ALARM_REWARD_FAILS,
    CLIME_ALARM_REWARD_SLOW,
    CLIME_ALARM_SAMPLES_FAIL,
    CLIME_ALARM_STALLED,
    CLIME_ALARM_EVAL_ZERO,
    CLIME_ALARM_DISK,
    CLIME_ALARM_ENDED,
    CLIME_ALARMS
};

enum clime_alarm_test {
    CLIME_ALARM_ABOVE,  /* value > limit */
    CLIME_ALARM_UP_TO,  /* value <= limit */
    CLIME_ALARM_SPIKE,  /* value > limit x the median of recent values */
    CLIME_ALARM_FALLEN, /* value <= limit x the mean of the run's first values */
};

struct clime_alarm_rule {
    const char *name;
    const char *line, *figure; /* kind of line and its member; NULL: fed by code */
    enum clime_alarm_test test;
    double limit; /* default for --alarm NAME=VALUE */
    int rise, calm;
    enum clime_alarm unless; /* a more exact alarm of the same cause: not checked while it is raised. Itself: none */
    bool async_only;         /* only for asynchronous runs: normal in synchronous ones */
    const char *what;        /* the value, in words */
    const char *means;       /* the consequence */
    const char *advice;      /* what to do */
};
extern const struct clime_alarm_rule clime_alarm_rules[CLIME_ALARMS];

#define CLIME_ALARM_RECENT 32 /* window of a spike's median */
#define CLIME_ALARM_FIRST 8   /* initial values; a spike needs as many before it */

struct clime_alarm_state { /* zero-initialise */
    bool raised;
    int bad, good; /* in a row */
    double recent[CLIME_ALARM_RECENT], first_sum;
    int64_t n; /* values so far */
};

enum clime_alarm_change { CLIME_ALARM_SAME, CLIME_ALARM_RAISED, CLIME_ALARM_CLEARED };

/* Judges a row's next value. limit NaN: off. *bound: what it was compared with; NaN if too early. */
enum clime_alarm_change clime_alarm_judge(const struct clime_alarm_rule *r, double limit, struct clime_alarm_state *s,
                                          double value, double *bound);

/* Index of the alarm, or -1. */
int clime_alarm_find(const char *name, int len);

#endif
