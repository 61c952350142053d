/* Private to engine.c (thread and steps), results.c (what steps give), counts.c (what it counts), control.c (what
 * others ask of it) and weights.c (what it computes with). */
#ifndef CLIME_SERVER_ENGINE_ENGINE_INT_H
#define CLIME_SERVER_ENGINE_ENGINE_INT_H

#include "server/engine/engine.h"
#include "server/engine/followers.h"
#include "server/engine/step.h"
#include "server/engine/trace.h"
#include "server/schedule/drafting.h"

enum clime_weights_state { CLIME_WEIGHTS_READY, CLIME_WEIGHTS_ABSENT, CLIME_WEIGHTS_WRITING };

/* A control call: on its caller's stack, run by the engine thread between two steps. */
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
    uint64_t door; /* that this one has shut */
    struct clime_memory_change *change;
    struct clime_trace *trace;  /* given, or taken away */
    void *h_weights;            /* where so many bytes of them go, */
    size_t weights_at, n_bytes; /* from this byte on */
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
    struct clime_step_plan plans[2]; /* by turns: the step being run, and the one after it */
    int turn;
    bool started; /* plans[turn] is in flight; while a step is being run: the one after it is */
    struct clime_step_results results;
    struct clime_drafting *drafting; /* NULL = off */
    int64_t step_from_us;            /* when the last step's results were taken; 0 = something else came between */
    struct clime_event *events;      /* of the present step, posted together */
    int n_events, events_size;
    int64_t next_id;
    struct clime_job *incoming; /* out of the inbox; outputs of the first from incoming_at on are to be taken */
    int incoming_at;
    struct clime_trace *trace;        /* of the steps, while somebody wants one; else NULL */
    uint64_t door;                    /* how often it was opened; while it is shut, */
    int n_at_door;                    /* calls that keep it so */
    bool has_owner;                   /* the weights came from memory that stays another process's */
    int64_t window_us, window_tokens; /* of the throughput being measured */
    struct clime_loads window_from;   /* as the window began */

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
    atomic_bool closing;           /* who comes waits, until those who are here have ended; set by the engine thread */
    atomic_int weights;            /* enum clime_weights_state, set by the engine thread */
    atomic_llong writing_until_us; /* end of patience with the owner of the weights; 0 = nobody waits for it. Set by
                                    * the engine thread */
    atomic_bool no_kv;             /* KV memory is given back; set by the engine thread */
    atomic_bool lent_weights; /* so are the weights, and nothing has brought others yet; set by the engine thread */
    _Atomic(const struct clime_weight_label *) version;
    atomic_llong last_step_us;
};

/* Any thread. */
/* Posts it and waits. */
void clime_engine_run(struct clime_engine *g, struct clime_command *c);
/* CLIME_ERR_UNAVAILABLE, saying why, while generation lacks something: a full set of weights, or KV memory. */
enum clime_err clime_engine_complete(struct clime_engine *g, struct clime_error *e);

/* Why a sequence ends that nobody wants any more. */
extern const struct clime_finish clime_aborted_running, clime_aborted_waiting;

/* Engine thread. */
/* results.c: g->results are those of the plan, whose items' sequences get their tokens and ends. */
void clime_engine_take_results(struct clime_engine *g, struct clime_step_plan *plan);
/* The sequence's last event; why.type is NONE when its last token carried the reason. */
void clime_engine_end(struct clime_engine *g, struct clime_seq *q, struct clime_finish why);
void clime_engine_end_all(struct clime_engine *g, struct clime_finish why);
void clime_engine_keep_choices(void *engine, struct clime_seq *q); /* the scheduler's retracting */
void clime_engine_close_output(struct clime_engine *g, struct clime_output *o, struct clime_finish why); /* never ran */
void clime_engine_do_sweep(struct clime_engine *g);
void clime_engine_post_events(struct clime_engine *g); /* those of now, to the emitters */

void clime_engine_set_label(struct clime_engine *g, const char *name, uint64_t number);
void clime_engine_count_step(struct clime_engine *g, const struct clime_step_plan *plan, int n_tokens);
void clime_engine_count_times(struct clime_engine *g, int64_t start_us, int64_t wait_us, int64_t result_us);
void clime_engine_count_idle(struct clime_engine *g); /* there is nothing to do */
void clime_engine_publish_loads(struct clime_engine *g);
bool clime_engine_is_dead(struct clime_engine *g, enum clime_err err, const struct clime_error *e);

#endif
