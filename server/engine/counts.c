/* Engine counters (struct clime_loads): tokens, steps, time per phase, running and waiting sequences.
 *
 * Called by engine.c, engine thread; guarded by the engine's lock, since any thread may read the loads. Invariant:
 * n_generated counts emitted tokens only.
 */
#include "common/clock.h"
#include "common/log.h"
#include "server/engine/engine_int.h"

#define WINDOW_US ((int64_t)1000000) /* throughput window */

static void close_window(struct clime_engine *g, int64_t now) {
    const struct clime_loads *l = &g->loads, *was = &g->window_from;
    LOG_DEBUG("%lld steps (%lld overlapped): %lld us planning and starting, %lld us waiting, %lld us results",
              (long long)(l->n_steps - was->n_steps), (long long)(l->n_overlapped - was->n_overlapped),
              (long long)(l->start_us - was->start_us), (long long)(l->wait_us - was->wait_us),
              (long long)(l->result_us - was->result_us));
    g->window_from = *l;
    g->loads.gen_throughput = (double)g->window_tokens * 1e6 / (double)(now - g->window_us);
    g->window_us = now;
    g->window_tokens = 0;
}

void clime_engine_count_step(struct clime_engine *g, const struct clime_step_plan *plan, int n_tokens) {
    int64_t now = clime_now_us();
    atomic_store(&g->last_step_us, now);
    pthread_mutex_lock(&g->lock);
    g->loads.n_generated += n_tokens;
    g->loads.n_steps++;
    for (int i = 0; i < plan->n_items; i++) {
        g->loads.n_draw_steps += plan->items[i].sample && plan->items[i].seq;
        g->loads.n_guesses += plan->items[i].n_guesses;
        g->loads.n_right += plan->items[i].n_right;
    }
    g->window_tokens += n_tokens;
    if (now - g->window_us >= WINDOW_US) close_window(g, now);
    pthread_mutex_unlock(&g->lock);
}

/* A step's time by phase. Time not spent waiting leaves the device idle, except in an overlapped step. */
void clime_engine_count_times(struct clime_engine *g, int64_t start_us, int64_t wait_us, int64_t result_us) {
    pthread_mutex_lock(&g->lock);
    g->loads.n_overlapped += g->started;
    g->loads.start_us += start_us;
    g->loads.wait_us += wait_us;
    g->loads.result_us += result_us;
    pthread_mutex_unlock(&g->lock);
}

/* Idle time is outside the window; a short burst is counted when it ends. */
void clime_engine_count_idle(struct clime_engine *g) {
    int64_t now = clime_now_us();
    pthread_mutex_lock(&g->lock);
    if (g->window_tokens > 0 && now > g->window_us) close_window(g, now);
    g->window_us = now;
    pthread_mutex_unlock(&g->lock);
}

void clime_engine_publish_loads(struct clime_engine *g) {
    const struct clime_sched *s = &g->sched;
    pthread_mutex_lock(&g->lock);
    struct clime_loads *l = &g->loads;
    l->n_running = s->n_running;
    l->n_waiting = s->n_waiting;
    l->n_used_tokens = clime_sched_used_tokens(s);
    l->hit_rate = s->n_prompt_tokens ? (double)s->n_hit_tokens / (double)s->n_prompt_tokens : 0;
    l->n_prompt = s->n_prompt_tokens;
    l->n_retracted = s->n_preempted;
    l->paused = g->paused;
    l->n_waiting_tokens = s->n_waiting_tokens;
    pthread_mutex_unlock(&g->lock);
}
