/* Engine internals, shared by engine.c (thread and steps), results.c (step results), counts.c (counters), control.c
 * (control calls) and weights.c (weight updates). */
#ifndef CLIME_SERVER_ENGINE_ENGINE_INT_H
#define CLIME_SERVER_ENGINE_ENGINE_INT_H

#include "server/engine/engine.h"
#include "server/engine/followers.h"
#include "server/engine/step.h"
#include "server/engine/trace.h"
#include "server/schedule/drafting.h"

enum clime_weights_state { CLIME_WEIGHTS_READY, CLIME_WEIGHTS_ABSENT, CLIME_WEIGHTS_WRITING };

/* A control call: lives on the caller's stack, run by the engine thread between two steps. */
struct clime_command {
    void (*run)(struct clime_engine *g, struct clime_command *c);
    struct clime_command *next;
    bool done; /* guarded by the engine's lock */
    /* arguments and results */
    enum clime_pause pause;
    enum clime_inflight inflight;
    const struct clime_weight_source *from;
    const char *label;
    int64_t limit_us;
    unsigned tags;
    bool running;  /* flush */
    uint64_t door; /* the door count at which this call shut it */
    struct clime_memory_change *change;
    struct clime_trace *trace;  /* in: the new one; out: the previous one */
    void *h_weights;            /* destination of */
    size_t weights_at, n_bytes; /* this byte range of the weights */
    int n_inflight;
    enum clime_err err;
    struct clime_error *error;
};

struct clime_engine {
    struct clime_engine_options opts;
    struct clime_model *model;
    struct clime_emitters *emitters;
    pthread_t thread;

    /* the engine thread's own */
    struct clime_sched sched;
    struct clime_runner *runner;
    struct clime_step_plan plans[2]; /* alternating: the running step and its successor */
    int turn;
    bool started; /* plans[turn] is in flight; while a step runs: its successor is */
    struct clime_step_results results;
    struct clime_drafting *drafting; /* NULL = off */
    int64_t step_from_us;            /* when the last step's results were read; 0 = other work came between */
    struct clime_event *events;      /* of the current step, posted together */
    int n_events, events_size;
    int64_t next_id;
    struct clime_job *incoming; /* out of the inbox; the first one's outputs from incoming_at on are not admitted yet */
    int incoming_at;
    struct clime_trace *trace;        /* records steps; NULL = off */
    uint64_t door;                    /* times that admission was opened */
    int n_at_door;                    /* calls that keep admission shut */
    bool has_owner;                   /* the weights lie in another process's memory */
    int64_t window_us, window_tokens; /* of the current throughput window */
    struct clime_loads window_from;   /* loads at the start of the window */

    /* guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the engine: the inbox is not empty */
    pthread_cond_t done; /* callers: some command is done */
    struct clime_job *first_job, *last_job;
    struct clime_command *first_command, *last_command;
    bool sweep, stop;
    struct clime_loads loads; /* as of the last step */

    /* any thread */
    atomic_llong in_flight;
    atomic_bool draining, dead;
    atomic_bool paused;            /* set by the engine thread */
    atomic_bool closing;           /* new requests wait until running ones have finished; set by the engine thread */
    atomic_int weights;            /* enum clime_weights_state, set by the engine thread */
    atomic_llong writing_until_us; /* deadline of the owner's rewrite; 0 = none. Set by the engine thread */
    atomic_bool no_kv;             /* KV memory is freed; set by the engine thread */
    atomic_bool lent_weights;      /* weights are freed and not replaced yet; set by the engine thread */
    _Atomic(const struct clime_weight_label *) version;
    atomic_llong last_step_us;
};

/* Any thread. */
/* Posts the command and waits until it has run. */
void clime_engine_run(struct clime_engine *g, struct clime_command *c);
/* CLIME_ERR_UNAVAILABLE, with the reason, while a full set of weights or KV memory is missing. */
enum clime_err clime_engine_complete(struct clime_engine *g, struct clime_error *e);

/* Finish reasons of unwanted sequences. */
extern const struct clime_finish clime_aborted_running, clime_aborted_waiting;

/* Engine thread. */
/* results.c: appends the tokens and finish reasons in g->results to the sequences of the plan's items. */
void clime_engine_take_results(struct clime_engine *g, struct clime_step_plan *plan);
/* Emits the sequence's last event; why.type is NONE when its last token carried the reason. */
void clime_engine_end(struct clime_engine *g, struct clime_seq *q, struct clime_finish why);
void clime_engine_end_all(struct clime_engine *g, struct clime_finish why);
void clime_engine_keep_choices(void *engine, struct clime_seq *q); /* the scheduler's `retracting` callback */
void clime_engine_close_output(struct clime_engine *g, struct clime_output *o, struct clime_finish why); /* never ran */
void clime_engine_do_sweep(struct clime_engine *g);
void clime_engine_post_events(struct clime_engine *g); /* to the emitters */

void clime_engine_set_label(struct clime_engine *g, const char *name, uint64_t number);
void clime_engine_count_step(struct clime_engine *g, const struct clime_step_plan *plan, int n_tokens);
void clime_engine_count_times(struct clime_engine *g, int64_t start_us, int64_t wait_us, int64_t result_us);
void clime_engine_count_idle(struct clime_engine *g); /* no work */
void clime_engine_publish_loads(struct clime_engine *g);
bool clime_engine_is_dead(struct clime_engine *g, enum clime_err err, const struct clime_error *e);

#endif
