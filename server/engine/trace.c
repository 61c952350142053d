/* The ring of spans (see trace.h). Owned by the engine while it records, then by the caller that removed it.
 *
 * One fixed-size entry per step or control call, so that recording costs an 80-byte copy and no allocation; phases
 * become separate events when the trace is written.
 */
#include "server/engine/trace.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/json/write.h"

#define RING 65536 /* entries: 5 MB, five minutes of steps of 5 ms */

struct entry {
    bool control; /* from plan_us to end_us; the rest is empty */
    struct clime_trace_step step;
};

struct clime_trace {
    int64_t first, n_left; /* n_left < 0: no end */
    void (*full)(void *arg);
    void *arg;
    atomic_bool is_full;
    int64_t n;       /* entries so far; the newest RING are kept */
    int64_t n_steps; /* steps in the ring */
    struct entry ring[RING];
};

struct clime_trace *clime_trace_new(int64_t first, int64_t n_steps, void (*full)(void *arg), void *arg) {
    struct clime_trace *t = xcalloc(1, sizeof *t);
    t->full = full;
    t->arg = arg;
    t->first = first;
    t->n_left = n_steps > 0 ? n_steps : -1;
    return t;
}

void clime_trace_free(struct clime_trace *t) {
    free(t);
}

static void add(struct clime_trace *t, const struct entry *e) {
    struct entry *at = &t->ring[t->n % RING];
    if (t->n >= RING && !at->control) t->n_steps--;
    *at = *e;
    t->n++;
    t->n_steps += !e->control;
}

void clime_trace_step(struct clime_trace *t, const struct clime_trace_step *s) {
    if (s->number < t->first || t->n_left == 0) return;
    add(t, &(struct entry){.step = *s});
    if (t->n_left < 0 || --t->n_left > 0) return;
    atomic_store(&t->is_full, true);
    t->full(t->arg);
}

bool clime_trace_full(const struct clime_trace *t) {
    return atomic_load(&t->is_full);
}

void clime_trace_control(struct clime_trace *t, int64_t begin_us, int64_t end_us) {
    if (t->n_left != 0) add(t, &(struct entry){.control = true, .step = {.plan_us = begin_us, .end_us = end_us}});
}

int clime_trace_count(const struct clime_trace *t) {
    return (int)t->n_steps;
}

static void open_event(struct clime_jw *w, const char *name, const char *phase) {
    clime_jw_object(w);
    clime_jw_put_strz(w, "name", name);
    clime_jw_put_strz(w, "ph", phase);
    clime_jw_put_int(w, "pid", 1);
    clime_jw_put_int(w, "tid", 1);
}

static void name_it(struct clime_jw *w, const char *what, const char *name) {
    open_event(w, what, "M");
    clime_jw_key(w, "args");
    clime_jw_object(w);
    clime_jw_put_strz(w, "name", name);
    clime_jw_close(w);
    clime_jw_close(w);
}

/* Leaves the object open. */
static void open_span(struct clime_jw *w, const char *name, int64_t begin_us, int64_t end_us) {
    open_event(w, name, "X");
    clime_jw_put_strz(w, "cat", "engine");
    clime_jw_put_int(w, "ts", begin_us);
    clime_jw_put_int(w, "dur", end_us - begin_us);
}

static void write_step(struct clime_jw *w, const struct clime_trace_step *s) {
    const struct {
        const char *name;
        int64_t begin_us, end_us;
    } phases[] = {{"plan and start", s->plan_us, s->wait_us},
                  {"wait for the device", s->wait_us, s->result_us},
                  {"results", s->result_us, s->end_us}};
    open_span(w, "step", s->plan_us, s->end_us);
    clime_jw_key(w, "args");
    clime_jw_object(w);
    clime_jw_put_int(w, "number", s->number);
    clime_jw_put_int(w, "sequences", s->n_seqs);
    clime_jw_put_int(w, "rows", s->n_rows);
    clime_jw_put_int(w, "waiting", s->n_waiting);
    clime_jw_put_bool(w, "overlapped", s->overlapped);
    clime_jw_close(w);
    clime_jw_close(w);
    for (size_t i = 0; i < CLIME_COUNT(phases); i++) {
        open_span(w, phases[i].name, phases[i].begin_us, phases[i].end_us);
        clime_jw_close(w);
    }
}

void clime_trace_write(const struct clime_trace *t, const char *process, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "displayTimeUnit", "ms");
    clime_jw_key(&w, "traceEvents");
    clime_jw_array(&w);
    name_it(&w, "process_name", process);
    name_it(&w, "thread_name", "engine");
    for (int64_t i = t->n > RING ? t->n - RING : 0; i < t->n; i++) {
        const struct entry *e = &t->ring[i % RING];
        if (!e->control) {
            write_step(&w, &e->step);
            continue;
        }
        open_span(&w, "control call", e->step.plan_us, e->step.end_us);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    clime_jw_close(&w);
}
