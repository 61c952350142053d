/* Alarms of a run. Called by the loop, by rollout threads, and by evaluation.
 *
 * Owns the rows' states, under `lock`, and the notification thread. The lock is held while an event is written, so the
 * ledger has an alarm's events in order; no thread that writes to the ledger waits for it.
 *
 * Invariant: a row's `raised` matches its newest event. */
#include "trainer/watch/alarms.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/watch/alarm_notify.h"

#define MAX_JSON ((size_t)64 << 10)

struct row {
    struct clime_alarm_state state;
    double limit;
    char *cause, *advice; /* for the next value; NULL = the table's */
};

struct clime_alarms {
    pthread_mutex_t lock;
    struct clime_ledger *ledger;
    const struct clime_run *run;
    const char *folder;
    struct clime_notify *notify; /* NULL = no notifications */
    struct row rows[CLIME_ALARMS];
    int64_t rollout, step; /* of the newest line; -1 = none yet */
};

/* ---- formats for other programs ---- */

int clime_alarm_event(const char *detail, bool *raised) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key, name = {"", 0}, state = {"", 0};
    clime_arena_init(&arena, MAX_JSON);
    clime_json_init(&j, detail, strlen(detail), &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "alarm"))
            clime_json_string(&j, &name);
        else if (clime_str_is(key, "state"))
            clime_json_string(&j, &state);
        else
            clime_json_skip(&j, NULL);
    }
    int id = clime_json_end(&j) ? clime_alarm_find(name.ptr, (int)name.len) : -1;
    *raised = clime_str_is(state, "raised");
    clime_arena_free(&arena);
    return id;
}

enum clime_err clime_alarm_limits(const struct clime_opt_list *words, bool async, double limits[CLIME_ALARMS],
                                  struct clime_error *e) {
    for (int i = 0; i < CLIME_ALARMS; i++)
        limits[i] = clime_alarm_rules[i].async_only && !async ? (double)NAN : clime_alarm_rules[i].limit;
    for (int i = 0; i < words->n; i++) {
        const char *word = words->items[i];
        int len = (int)strcspn(word, "="), id = clime_alarm_find(word, len);
        const char *value = word[len] ? word + len + 1 : "";
        char *end;
        if (id < 0)
            return clime_fail(e, CLIME_ERR_INPUT, "--alarm %s: no alarm is called %.*s (docs/alarms.md has the table)",
                              word, len, word);
        limits[id] = strcmp(value, "off") ? strtod(value, &end) : (double)NAN;
        if (strcmp(value, "off") && (end == value || *end || !isfinite(limits[id])))
            return clime_fail(e, CLIME_ERR_INPUT, "--alarm %s: wanted is NAME=NUMBER or NAME=off", word);
    }
    return CLIME_OK;
}

/* ---- messages ---- */

static void put_cause(const struct clime_alarm_rule *r, const struct row *row, double value, double bound,
                      struct clime_buf *out) {
    if (row->cause) {
        clime_buf_printf(out, "%s. %s", row->cause, r->means);
        return;
    }
    clime_buf_printf(out, "%s is %.4g, ", r->what, value);
    switch (r->test) {
    case CLIME_ALARM_ABOVE:
        clime_buf_printf(out, "above %.4g", bound);
        break;
    case CLIME_ALARM_UP_TO:
        clime_buf_printf(out, "not above %.4g", bound);
        break;
    case CLIME_ALARM_SPIKE:
        clime_buf_printf(out, "more than %g times what it was of late", row->limit);
        break;
    case CLIME_ALARM_FALLEN:
        clime_buf_printf(out, "not above %.4g, %g of what it began with", bound, row->limit);
        break;
    }
    if (r->rise > 1) clime_buf_printf(out, ", %d times in a row", r->rise);
    clime_buf_printf(out, ". %s", r->means);
}

/* Writes an event's members; told: plus those of a notification, whose reader does not know the run. */
static void put_json(const struct clime_alarms *a, const struct clime_alarm_rule *r, bool raised, double value,
                     double bound, const char *cause, const char *advice, bool told, struct clime_buf *out) {
    struct clime_jw w;
    char at[32];
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "alarm", r->name);
    clime_jw_put_strz(&w, "state", raised ? "raised" : "cleared");
    clime_jw_put_int(&w, "rollout", a->rollout);
    clime_jw_put_int(&w, "step", a->step);
    clime_jw_put_double(&w, "value", value);
    clime_jw_put_double(&w, "limit", bound);
    clime_jw_put_strz(&w, "cause", cause);
    if (raised) clime_jw_put_strz(&w, "advice", advice);
    if (told) {
        clime_wall_format(clime_wall_us(), at);
        clime_jw_put_strz(&w, "run", a->run->name);
        clime_jw_put_strz(&w, "folder", a->folder);
        clime_jw_put_strz(&w, "at", at);
    }
    clime_jw_close(&w);
}

static void tell(struct clime_alarms *a, int id, bool raised, double value, double bound) {
    const struct clime_alarm_rule *r = &clime_alarm_rules[id];
    struct row *row = &a->rows[id];
    const char *advice = row->advice ? row->advice : r->advice;
    struct clime_buf cause, json;
    clime_buf_init(&cause, MAX_JSON);
    clime_buf_init(&json, MAX_JSON);
    if (raised)
        put_cause(r, row, value, bound, &cause);
    else
        clime_buf_printf(&cause, "over: %s is %.4g", r->what, value);
    if (raised)
        LOG_WARN("alarm %s: %s %s", r->name, cause.data, advice);
    else
        LOG_INFO("alarm %s is %s", r->name, cause.data);
    put_json(a, r, raised, value, bound, cause.data, advice, false, &json);
    clime_event_put(a->ledger, a->run->incarnation, "alarm", json.data);
    if (a->notify) {
        clime_buf_clear(&json);
        put_json(a, r, raised, value, bound, cause.data, advice, true, &json);
        clime_notify_send(a->notify, json.data);
    }
    clime_buf_free(&cause);
    clime_buf_free(&json);
}

/* ---- values ---- */

static void forget_note(struct row *row) {
    free(row->cause);
    free(row->advice);
    row->cause = row->advice = NULL;
}

static void judge(struct clime_alarms *a, int id, double value, bool quiet) {
    const struct clime_alarm_rule *r = &clime_alarm_rules[id];
    struct row *row = &a->rows[id];
    double bound;
    bool covered = r->unless != (enum clime_alarm)id && a->rows[r->unless].state.raised;
    if (covered && !row->state.raised) return;
    enum clime_alarm_change change = clime_alarm_judge(r, row->limit, &row->state, value, &bound);
    if (change != CLIME_ALARM_SAME && !quiet) tell(a, id, change == CLIME_ALARM_RAISED, value, bound);
    forget_note(row);
}

static void set_note(struct row *row, const char *cause, const char *advice) {
    forget_note(row);
    row->cause = cause ? xstrdup(cause) : NULL;
    row->advice = advice ? xstrdup(advice) : NULL;
}

void clime_alarms_see(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause,
                      const char *advice) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    set_note(&a->rows[id], cause, advice);
    judge(a, (int)id, value, false);
    pthread_mutex_unlock(&a->lock);
}

void clime_alarms_see_growing(struct clime_alarms *a, enum clime_alarm id, double value, const char *cause) {
    CHECK(clime_alarm_rules[id].test == CLIME_ALARM_ABOVE);
    if (a && value > a->rows[id].limit) clime_alarms_see(a, id, value, cause, NULL);
}

void clime_alarms_note(struct clime_alarms *a, enum clime_alarm id, const char *cause, const char *advice) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    set_note(&a->rows[id], cause, advice);
    pthread_mutex_unlock(&a->lock);
}

static int row_of(struct clime_str kind, struct clime_str figure) {
    for (int i = 0; i < CLIME_ALARMS; i++) {
        const struct clime_alarm_rule *r = &clime_alarm_rules[i];
        if (r->figure && clime_str_is(kind, r->line) && clime_str_is(figure, r->figure)) return i;
    }
    return -1;
}

struct read {
    struct clime_alarms *a;
    double values[CLIME_ALARMS];
    bool has[CLIME_ALARMS];
};

static void read_figure(void *arg, struct clime_str kind, struct clime_str name, double value) {
    struct read *r = arg;
    int id = row_of(kind, name);
    if (clime_str_is(name, "rollout")) r->a->rollout = (int64_t)value;
    if (clime_str_is(name, "step")) r->a->step = (int64_t)value;
    if (id < 0) return;
    r->values[id] = value;
    r->has[id] = true;
}

/* Judges a line's values in the table's order. */
static void read_line(struct clime_alarms *a, const char *line, bool quiet) {
    struct read r = {.a = a};
    clime_metrics_figures(line, read_figure, &r);
    for (int i = 0; i < CLIME_ALARMS; i++)
        if (r.has[i]) judge(a, i, r.values[i], quiet);
}

void clime_alarms_line(struct clime_alarms *a, const char *line) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    read_line(a, line, false);
    pthread_mutex_unlock(&a->lock);
}

/* ---- opening ---- */

static void recall_line(void *arg, const char *line) {
    read_line(arg, line, true);
}

static void recall_event(void *arg, const char *detail) {
    struct clime_alarms *a = arg;
    bool raised;
    int id = clime_alarm_event(detail, &raised);
    if (id >= 0) a->rows[id].state.raised = raised;
}

/* Restores windows from the metrics and raised alarms from the events; clears an alarm that is off now. */
static enum clime_err recall(struct clime_alarms *a, struct clime_error *e) {
    struct clime_db *db = clime_ledger_reader(a->ledger);
    enum clime_err rc = clime_metrics_each(db, INT64_MAX, recall_line, a, e);
    for (int i = 0; i < CLIME_ALARMS; i++) a->rows[i].state.raised = false;
    if (!rc) rc = clime_events_each(db, "alarm", recall_event, a, e);
    for (int i = 0; i < CLIME_ALARMS && !rc; i++) {
        struct row *row = &a->rows[i];
        bool over = row->state.raised && isnan(row->limit);
        row->state.raised = row->state.raised && !over;
        if (over) tell(a, i, false, 0, NAN);
    }
    return rc;
}

enum clime_err clime_alarms_open(const struct clime_alarm_options *o, bool async, struct clime_ledger *l,
                                 const struct clime_run *run, const char *folder, struct clime_alarms **out,
                                 struct clime_error *e) {
    struct clime_alarms *a = xcalloc(1, sizeof *a);
    double limits[CLIME_ALARMS];
    a->ledger = l;
    a->run = run;
    a->folder = folder;
    a->rollout = a->step = -1;
    pthread_mutex_init(&a->lock, NULL);
    enum clime_err rc = clime_alarm_limits(&o->limits, async, limits, e);
    for (int i = 0; i < CLIME_ALARMS; i++) a->rows[i].limit = limits[i];
    if (!rc && (o->command || o->url)) rc = clime_notify_open(o->command, o->url, &a->notify, e);
    if (!rc) rc = recall(a, e);
    if (rc) {
        clime_alarms_close(a);
        a = NULL;
    }
    *out = a;
    return rc;
}

void clime_alarms_close(struct clime_alarms *a) {
    if (!a) return;
    clime_notify_close(a->notify);
    for (int i = 0; i < CLIME_ALARMS; i++) forget_note(&a->rows[i]);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
