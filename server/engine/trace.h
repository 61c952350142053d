/* What the engine does when, for whoever asks to see it (/start_profile): spans of steps in a ring of fixed size, the
 * oldest giving way. Recorded by the engine thread alone; it is made, and taken away, between two steps (engine.h), so
 * nothing here has a lock. Written as Chrome's trace events, which Perfetto and chrome://tracing open.
 */
#ifndef CLIME_SERVER_ENGINE_TRACE_H
#define CLIME_SERVER_ENGINE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

struct clime_trace;

struct clime_trace_step {
    int64_t number;                              /* of the step, since the engine began */
    int64_t plan_us, wait_us, result_us, end_us; /* when each phase began (clime_now_us), and the end */
    int n_seqs, n_rows, n_waiting;
    bool overlapped; /* the next one was started before this one's results were read */
};

/* Records n_steps steps (0: all, of which the last ring's worth is kept) from step number `first` on. full(arg) is
 * called once, on the engine thread, which must not wait in it, when those are there. */
struct clime_trace *clime_trace_new(int64_t first, int64_t n_steps, void (*full)(void *arg), void *arg);
void clime_trace_free(struct clime_trace *t); /* NULL is fine */

void clime_trace_step(struct clime_trace *t, const struct clime_trace_step *s);
/* A control call between two steps. */
void clime_trace_control(struct clime_trace *t, int64_t begin_us, int64_t end_us);

bool clime_trace_full(const struct clime_trace *t); /* it has its n_steps; any thread */
int clime_trace_count(const struct clime_trace *t); /* steps that are held */
void clime_trace_write(const struct clime_trace *t, const char *process, struct clime_buf *out);

#endif
