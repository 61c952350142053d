/* See runs.h. */
#include "kernels/runs.h"

#include <string.h>

/* CUDA's limit for a copy by rows. */
#define MOST_STEP ((size_t)INT32_MAX)

static size_t step_of(const struct clime_run *r, const struct clime_run *piece, int i) {
    const size_t step = (size_t)(uintptr_t)piece->at[i] - (size_t)(uintptr_t)r->at[i];
    return r->n == 1 ? step : step - (size_t)(r->n - 1) * r->step[i];
}

static bool goes_on(const struct clime_run *r, const struct clime_run *piece) {
    if (r->bytes != piece->bytes || r->n_at != piece->n_at) return false;
    for (int i = 0; i < r->n_at; i++) {
        const size_t step = step_of(r, piece, i);
        if (r->n == 1 ? step < r->bytes || step > MOST_STEP : step != r->step[i]) return false;
    }
    return true;
}

/* A run without gaps becomes one row. */
static void take(struct clime_runs *r, struct clime_run *out) {
    bool gaps = false;
    *out = r->open[0];
    r->n--;
    memmove(r->open, r->open + 1, (size_t)r->n * sizeof *r->open);
    for (int i = 0; i < out->n_at; i++) gaps |= out->step[i] != out->bytes;
    if (gaps) return;
    out->bytes *= (size_t)out->n;
    out->n = 1;
    for (int i = 0; i < out->n_at; i++) out->step[i] = out->bytes;
}

bool clime_runs_add(struct clime_runs *r, const struct clime_run *piece, struct clime_run *out) {
    for (int k = r->n - 1; k >= 0; k--) {
        struct clime_run *run = &r->open[k];
        if (!goes_on(run, piece)) continue;
        for (int i = 0; i < run->n_at; i++) run->step[i] = step_of(run, piece, i);
        run->n++;
        return false;
    }
    const bool full = r->n == CLIME_RUNS;
    if (full) take(r, out);
    r->open[r->n] = *piece;
    for (int i = 0; i < piece->n_at; i++) r->open[r->n].step[i] = piece->bytes;
    r->n++;
    return full;
}

bool clime_runs_end(struct clime_runs *r, struct clime_run *out) {
    if (r->n == 0) return false;
    take(r, out);
    return true;
}
