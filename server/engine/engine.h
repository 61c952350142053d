/* The engine: one thread that owns scheduler, KV pages, model and device, and the calls into it.
 *
 * Jobs enter through reserve + submit and leave as events to the emitters. Control calls (pause, update, flush, ...)
 * share the inbox and run between two steps with none in flight: each sees, and leaves, a whole number of steps.
 * Every function may be called from any thread but the engine's own.
 */
#ifndef CLIME_SERVER_ENGINE_ENGINE_H
#define CLIME_SERVER_ENGINE_ENGINE_H

#include "model/model.h"
#include "server/job/emitter.h"
#include "server/schedule/scheduler.h"

struct clime_engine;
struct clime_followers;

struct clime_engine_options {
    struct clime_sched_options sched;
    int max_len;            /* longest sequence in tokens, prompt included */
    int64_t max_queued;     /* outputs in flight beyond max_running; < 0 = no limit */
    int64_t queue_limit_us; /* longest wait for admission; 0 = no limit */
    int emitter_threads;
    const char *weight_version; /* label of the weights loaded at start; copied */
    const int32_t *eos;         /* [n_eos] ids that end a sequence; borrowed */
    int n_eos;
    bool overlap;                      /* start the next step before this one's results are read, where possible */
    int draft_rows;                    /* most rows of a sequence in a step, guesses included; < 2: no drafting */
    bool draft_adaptive;               /* draft only where it is faster */
    bool debug_checks;                 /* recount all invariants after every step */
    struct clime_followers *followers; /* the model's other ranks; NULL = none. Borrowed until close */
    const int *graph_bs; /* [n_graph_bs] batch sizes of recorded decode steps; borrowed until open returns */
    int n_graph_bs;
};

/* Borrows the model, for its sole use, until close. */
enum clime_err clime_engine_open(const struct clime_engine_options *o, struct clime_model *m, struct clime_engine **out,
                                 struct clime_error *e);
/* Aborts the remaining outputs; joins the engine and emitter threads. */
void clime_engine_close(struct clime_engine *g);

/* ---- jobs ---- */

/* Reserves room for n outputs. CLIME_ERR_BUSY: the queue is full. CLIME_ERR_UNAVAILABLE: draining, dead, or without
 * weights or KV memory. Release after the reply is sent, or when the job is not submitted. */
enum clime_err clime_engine_reserve(struct clime_engine *g, int n, struct clime_error *e);
void clime_engine_release(struct clime_engine *g, int n);
/* Submits a reserved job: sets its shard and makes its sequences, which walks the prompts. */
void clime_engine_submit(struct clime_engine *g, struct clime_job *j);
/* The finish reason of an output whose n_out-th token is id, judged by ids alone; type NONE when it continues. */
struct clime_finish clime_engine_finish(const struct clime_engine *g, const struct clime_output *o, int n_out,
                                        int32_t id);
void clime_engine_sweep(struct clime_engine *g); /* end the outputs marked unwanted, soon */

void clime_engine_drain(struct clime_engine *g);        /* reserve fails from now on */
int64_t clime_engine_in_flight(struct clime_engine *g); /* outputs reserved and not released */

/* ---- control: each call returns when the engine has run it ---- */

enum clime_pause { CLIME_PAUSE_ABORT, CLIME_PAUSE_RETRACT, CLIME_PAUSE_IN_PLACE };

void clime_engine_sweep_wait(struct clime_engine *g); /* waits for outputs marked unwanted before */
void clime_engine_pause(struct clime_engine *g, enum clime_pause mode);
/* Running requests finish, new ones wait; paused when the last has finished. CLIME_ERR_TIMEOUT after limit_us and
 * CLIME_ERR_ABORTED once given_up(arg), polled often, is true: admission is open again. CLIME_ERR_UNAVAILABLE: resumed
 * meanwhile by another call. */
enum clime_err clime_engine_pause_when_done(struct clime_engine *g, int64_t limit_us, bool (*given_up)(void *arg),
                                            void *arg, struct clime_error *e);
void clime_engine_resume(struct clime_engine *g);
/* Empties the prefix cache. CLIME_ERR_BUSY unless idle. running: running sequences drop their KV too and recompute
 * it. */
enum clime_err clime_engine_flush(struct clime_engine *g, bool running, struct clime_error *e);

/* The source of new weights, in the model's layout and type. */
struct clime_weight_source {
    enum { CLIME_FROM_HOST, CLIME_FROM_DEVICE, CLIME_FROM_OWNER, CLIME_FROM_PARTS } kind;
    const void *flat; /* host or device memory, copied */
    /* FROM_OWNER: [n_handles] of another process's memory: one with all weights (clime_model_map), or one share for
     * each of the server's devices (clime_model_open_share) */
    const uint8_t (*handles)[CLIME_SHARE_BYTES];
    int n_handles;
    struct clime_weight_parts parts; /* FROM_PARTS: each device copies its own; checksum compared */
    const bool *slices;              /* FROM_DEVICE: [layout.n_slices] tensors that change; NULL = all */
};

/* Replaces the weights at a step boundary. n_inflight: sequences in flight at that moment. CLIME_ERR_INPUT for a
 * partial update when the other weights are missing, not the server's own, or spread over several devices. */
enum clime_err clime_engine_update(struct clime_engine *g, const struct clime_weight_source *from, const char *label,
                                   enum clime_inflight inflight, int *n_inflight, struct clime_error *e);

/* The owner of mapped weights is about to rewrite them: once this returns, no step runs until the next update. New
 * requests fail meanwhile; the ones in flight end after limit_us, since the owner may have died. CLIME_ERR_INPUT when
 * the weights are the model's own. */
enum clime_err clime_engine_writing(struct clime_engine *g, int64_t limit_us, struct clime_error *e);

/* Device memory that can be freed for other processes while no request is in flight (CLIME_ERR_BUSY otherwise). Freeing
 * KV also empties the prefix cache. Allocating weight memory again does not restore the weights; the next full update
 * does. */
enum clime_memory_tag { CLIME_MEMORY_KV = 1, CLIME_MEMORY_WEIGHTS = 2 };
struct clime_memory_change {
    size_t kv, weights;             /* bytes freed or allocated */
    size_t free_before, free_after; /* of the device */
};
enum clime_err clime_engine_give_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e);
/* CLIME_ERR_LIMIT: not enough memory; allocations made before the failure stay. */
enum clime_err clime_engine_take_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e);

/* Sets the trace that steps are recorded in (trace.h; NULL: none) and returns the previous one, or NULL. The engine
 * owns the trace that is set; the caller owns the one returned. */
struct clime_trace;
void clime_engine_trace(struct clime_engine *g, struct clime_trace *give, struct clime_trace **out);

/* Copies n_bytes of weights, from byte `at` of the layout, to host memory. CLIME_ERR_UNAVAILABLE: no weights.
 * CLIME_ERR_INPUT: the weights are spread over several devices. */
enum clime_err clime_engine_read_weights(struct clime_engine *g, size_t at, size_t n_bytes, void *h_out,
                                         struct clime_error *e);
bool clime_engine_has_weights(struct clime_engine *g); /* a full set is in use; any thread */
unsigned clime_engine_lent(struct clime_engine *g);    /* tags whose memory is freed */
/* Renames the current weights; later tokens of running sequences carry the new label. */
void clime_engine_relabel(struct clime_engine *g, const char *label);

/* True when the engine thread responds, or finished a step, within the timeout. */
bool clime_engine_alive(struct clime_engine *g, int64_t timeout_us);
/* True while the owner rewrites the weights, within its time limit. */
bool clime_engine_held(struct clime_engine *g);
bool clime_engine_dead(struct clime_engine *g); /* the device failed */
const struct clime_weight_label *clime_engine_version(struct clime_engine *g);

struct clime_loads {
    int n_running, n_waiting; /* outputs in the engine; in flight outside it counts as waiting */
    int n_used_tokens, n_total_tokens, max_running;
    int64_t n_waiting_tokens; /* prompt tokens not computed yet */
    double gen_throughput;    /* sampled tokens/s over the last second of work; 0 after 2 s idle */
    double hit_rate;          /* of prompt tokens, since start */
    int64_t n_retracted, n_generated, n_prompt, n_steps;
    int64_t n_draw_steps;                 /* (sequence, step) pairs in which the sequence drew */
    int64_t n_guesses, n_right;           /* tokens guessed, and how many of them were right */
    int64_t n_overlapped;                 /* steps whose successor started before their results were read */
    int64_t start_us, wait_us, result_us; /* planning and starting steps, waiting, reading results */
    bool paused;
};
void clime_engine_loads(struct clime_engine *g, struct clime_loads *out);

/* Mean tokens a sequence gains per step, since start; 0 before the first. */
static inline double clime_loads_accept_length(const struct clime_loads *l) {
    return l->n_draw_steps ? (double)(l->n_draw_steps + l->n_right) / (double)l->n_draw_steps : 0;
}

#endif
