/* What can go wrong in a run and be seen in its figures: a table, a row an alarm, and the judge that looks at one
 * value after another. Pure; the caller owns the state.
 *
 * Nouns
 *   figure   a member of a line of metrics (trainer/watch/metrics_log.h). Rows without one are seen by the code that
 *            knows (clime_alarms_see).
 *   bound    what a value is compared with: the limit, or the limit times what was usual (spike) or was at the
 *            beginning (fallen).
 *   raised   `rise` values in a row were bad. It stays so until `calm` in a row were good, and good is a tenth away
 *            from the bound: a figure that lies on it raises one alarm, not one each time.
 */
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
    CLIME_ALARM_SPIKE,  /* value > limit x the median of the values before it */
    CLIME_ALARM_FALLEN, /* value <= limit x the mean of the run's first values */
};

struct clime_alarm_rule {
    const char *name;
    const char *line, *figure; /* kind of the line and its member; NULL: seen by code */
    enum clime_alarm_test test;
    double limit; /* unless --alarm NAME=VALUE gives another */
    int rise, calm;
    enum clime_alarm unless; /* the same cause seen more exactly: while it is raised this one is not looked at. Itself:
                              * none */
    bool async_only;         /* how a synchronous run works by design */
    const char *what;        /* the value, in words */
    const char *means;       /* what follows from it */
    const char *advice;      /* what to do */
};
extern const struct clime_alarm_rule clime_alarm_rules[CLIME_ALARMS];

#define CLIME_ALARM_RECENT 32 /* values that the median of a spike is of */
#define CLIME_ALARM_FIRST 8   /* values of the beginning; a spike needs as many before it */

struct clime_alarm_state { /* zero at first */
    bool raised;
    int bad, good; /* in a row */
    double recent[CLIME_ALARM_RECENT], first_sum;
    int64_t n; /* values so far */
};

enum clime_alarm_change { CLIME_ALARM_SAME, CLIME_ALARM_RAISED, CLIME_ALARM_CLEARED };

/* The next value of a row. limit NaN: the alarm is off. *bound: what it was compared with; NaN where it is too early to
 * say. */
enum clime_alarm_change clime_alarm_judge(const struct clime_alarm_rule *r, double limit, struct clime_alarm_state *s,
                                          double value, double *bound);

/* -1 = there is no such alarm. */
int clime_alarm_find(const char *name, int len);

#endif
