/* The engine's profile trace (/start_profile): spans of steps in a fixed-size ring that overwrites the oldest. Only the
 * engine thread records; a trace is installed and removed between two steps (engine.h), so there is no lock. Written as
 * Chrome trace events, for Perfetto and chrome://tracing.
 */
#ifndef CLIME_SERVER_ENGINE_TRACE_H
#define CLIME_SERVER_ENGINE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

struct clime_trace;

struct clime_trace_step {
    int64_t number;                              /* step number since the engine started */
    int64_t plan_us, wait_us, result_us, end_us; /* start of each phase (clime_now_us), and the end */
    int n_seqs, n_rows, n_waiting;
    bool overlapped; /* the next step started before this one's results were read */
};

/* Records n_steps steps (0: all; the ring keeps the last ones) from step number `first` on. full(arg) is called once,
 * on the engine thread, when n_steps are recorded; it must not block. */
struct clime_trace *clime_trace_new(int64_t first, int64_t n_steps, void (*full)(void *arg), void *arg);
void clime_trace_free(struct clime_trace *t); /* NULL is fine */

void clime_trace_step(struct clime_trace *t, const struct clime_trace_step *s);
/* A control call between two steps. */
void clime_trace_control(struct clime_trace *t, int64_t begin_us, int64_t end_us);

bool clime_trace_full(const struct clime_trace *t); /* n_steps are recorded; any thread */
int clime_trace_count(const struct clime_trace *t); /* steps in the ring */
void clime_trace_write(const struct clime_trace *t, const char *process, struct clime_buf *out);

#endif
