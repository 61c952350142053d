/* The server's memory plan. Called by main before weights and KV are allocated; pure except for one query to the
 * device.
 *
 * Invariant: on a device with its own memory, this covers every allocation while the server runs, so no request
 * exhausts the device.
 */
#include "server/engine/memory_plan.h"

#include "server/engine/step.h"
#include "server/engine/step_graphs.h"

#define CPU_KV_BYTES ((size_t)4 << 30) /* default KV limit on the CPU, whose memory other processes share */

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

static size_t less(size_t a, size_t b) {
    return a > b ? a - b : 0;
}

/* As many pages as the fraction allows, at most twice the need of max_running full sequences: the second half is for
 * the prefix cache. */
static int64_t choose_pages(const struct clime_server_memory *p, const struct clime_sched_options *sched,
                            const struct clime_memory_want *want, size_t page, size_t staging) {
    if (want->max_total_tokens > 0) return (want->max_total_tokens + CLIME_PAGE - 1) / CLIME_PAGE;
    size_t room = (size_t)((double)p->free_bytes * want->fraction), rest = CPU_KV_BYTES;
    if (!p->own_memory && want->n_ranks > 1) {
        room /= (size_t)want->n_ranks;
        rest /= (size_t)want->n_ranks;
    }
    if (p->own_memory) {
        room = less(room, p->weights);
        rest = less(p->free_bytes, p->weights + p->scratch + p->code + staging + p->trial);
    }
    if (room > rest) room = rest;
    int64_t fit = (int64_t)(room / page), useful = 2 * (int64_t)sched->max_running * clime_pages_for(want->context);
    int64_t n = fit < useful ? fit : useful;
    return n < 1 && !p->own_memory ? 1 : n;
}

/* The largest trial of any matrix product at any number of rows; trials run one after another. */
static size_t trial_of(const struct clime_model *m, const struct clime_sched_options *o) {
    int T = o->chunk + o->max_running,
        R = o->max_running < CLIME_GRAPH_MAX_ROWS ? o->max_running : CLIME_GRAPH_MAX_ROWS;
    return clime_model_trial_bytes(m, T, R, false);
}

enum clime_err clime_server_memory_make(const struct clime_model *m, const struct clime_sched_options *sched,
                                        const struct clime_memory_want *want, struct clime_server_memory *out,
                                        struct clime_error *e) {
    struct clime_server_memory *p = out;
    size_t page = clime_kv_page_bytes(m), weights = clime_model_own_bytes(m);
    *p = (struct clime_server_memory){.own_memory = m->ops->own_memory, .code = m->ops->code_bytes};
    m->ops->memory(m->dev, &p->free_bytes, &p->total_bytes);
    p->weights = clime_model_memory(m) - (want->own_weights ? 0 : weights);
    p->staging = want->own_weights && p->own_memory ? clime_model_bytes(m) : 0;
    p->scratch =
        clime_runner_bytes(m, sched, want->context) + (want->n_ranks > 1 ? m->ops->links_bytes(want->n_ranks) : 0);
    p->trial = trial_of(m, sched);
    int64_t n = choose_pages(p, sched, want, page, p->staging);
    if (n < 1 && want->n_ranks > 1 && p->staging) { /* updates that stage whole weights then go over HTTP */
        p->staging = weights;
        n = choose_pages(p, sched, want, page, p->staging);
    }
    const int64_t most = choose_pages(p, sched, want, page, 0);
    if (n < 1 && p->staging) n = most; /* then every update does; the line says so */
    p->n_pages_for_staging = (int)(most - n);
    p->kv = (size_t)(n + 1) * page; /* one page for the padding of recorded steps */
    p->n_pages = (int)n;
    bool fits = n > 0 && p->weights + p->kv + p->scratch + p->code <= p->free_bytes;
    if (!p->own_memory || fits) return CLIME_OK;
    struct clime_buf text;
    clime_buf_init(&text, 1024);
    clime_server_memory_line(p, &text);
    enum clime_err rc = clime_fail(e, CLIME_ERR_LIMIT, "the model does not fit with KV memory: %s. %s", text.data,
                                   want->max_total_tokens > 0 ? "A smaller --max-total-tokens takes less"
                                                              : "A larger --mem-fraction-static, a smaller "
                                                                "--chunked-prefill-size or another "
                                                                "device would leave room");
    clime_buf_free(&text);
    return rc;
}

void clime_server_memory_line(const struct clime_server_memory *p, struct clime_buf *out) {
    size_t sum = p->weights + p->kv + p->scratch + p->code;
    clime_buf_printf(out, "weights %.2f + KV %.2f (%d pages of %d tokens) + scratch %.2f", gib(p->weights), gib(p->kv),
                     p->n_pages, CLIME_PAGE, gib(p->scratch));
    if (p->code) clime_buf_printf(out, " + kernels' code %.2f", gib(p->code));
    clime_buf_printf(out, " = %.2f GiB of %.2f free at start (%.2f in all)", gib(sum), gib(p->free_bytes),
                     gib(p->total_bytes));
    if (!p->own_memory) return;
    size_t left = less(p->free_bytes, sum);
    clime_buf_printf(out, ", %.2f left", gib(left));
    if (p->trial)
        clime_buf_printf(out, "; %.2f of it for a moment at start%s", gib(p->trial),
                         p->trial <= left ? "" : ", WHICH DOES NOT FIT: some may be slow");
    if (p->staging)
        clime_buf_printf(out, "; staging %.2f of it while an update comes by the device%s", gib(p->staging),
                         p->staging <= left ? "" : ", WHICH DOES NOT FIT: it goes over HTTP");
    if (p->n_pages_for_staging)
        clime_buf_printf(out,
                         ", for which KV has %d pages less: --max-total-tokens %d takes them, and updates go over HTTP",
                         p->n_pages_for_staging, (p->n_pages + p->n_pages_for_staging) * CLIME_PAGE);
}
