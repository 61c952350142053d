/* The engine: one thread that owns scheduler, KV pages, model and device, and everything that may be asked of it.
 *
 * Jobs come in through reserve + submit and leave as events to the emitters. Control calls (pause, update, flush, ...)
 * wait in the same inbox and run between two steps, none in flight, so each of them sees, and leaves, a whole number of
 * steps.
 * All functions may be called from any thread but the engine's own.
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
    int max_len;            /* tokens of a sequence, prompt included */
    int64_t max_queued;     /* outputs in flight beyond max_running; < 0 = no limit */
    int64_t queue_limit_us; /* how long an output may wait to be admitted; 0 = as long as it takes */
    int emitter_threads;
    const char *weight_version; /* label of the weights loaded at start; copied */
    const int32_t *eos;         /* [n_eos] ids that end a sequence; borrowed */
    int n_eos;
    bool overlap;                      /* start the next step before this one's results are read, where that can be */
    int draft_rows;                    /* most rows of a sequence in a step, guessed ones included; < 2: no drafting */
    bool draft_adaptive;               /* only where it pays */
    bool debug_checks;                 /* recount all invariants after every step */
    struct clime_followers *followers; /* the other ranks of the model; NULL = there are none. Borrowed until close */
    const int *graph_bs; /* [n_graph_bs] batch sizes of recorded decode steps; borrowed until open returns */
    int n_graph_bs;
};

/* The engine borrows the model and alone uses it until close. */
enum clime_err clime_engine_open(const struct clime_engine_options *o, struct clime_model *m, struct clime_engine **out,
                                 struct clime_error *e);
/* Ends what is left as aborted, joins the engine and the emitters. */
void clime_engine_close(struct clime_engine *g);

/* ---- jobs ---- */

/* Room for n outputs: CLIME_ERR_BUSY when the queue is full, CLIME_ERR_UNAVAILABLE when draining, dead or without
 * weights or KV memory. What was reserved is given back with clime_engine_release, once the reply has been sent (or the
 * job was not submitted). */
enum clime_err clime_engine_reserve(struct clime_engine *g, int n, struct clime_error *e);
void clime_engine_release(struct clime_engine *g, int n);
/* Reserved before. Sets the job's shard and makes its sequences, which is where prompts are walked. */
void clime_engine_submit(struct clime_engine *g, struct clime_job *j);
/* Why an output ends with id as its n_out-th token, as far as ids say it; type NONE when it goes on. */
struct clime_finish clime_engine_finish(const struct clime_engine *g, const struct clime_output *o, int n_out,
                                        int32_t id);
void clime_engine_sweep(struct clime_engine *g); /* end the outputs marked unwanted, soon */

void clime_engine_drain(struct clime_engine *g);        /* from now on reserve refuses */
int64_t clime_engine_in_flight(struct clime_engine *g); /* outputs reserved and not released */

/* ---- control: each returns when the engine has done it ---- */

enum clime_pause { CLIME_PAUSE_ABORT, CLIME_PAUSE_RETRACT, CLIME_PAUSE_IN_PLACE };

void clime_engine_sweep_wait(struct clime_engine *g); /* every output marked unwanted before the call has left */
void clime_engine_pause(struct clime_engine *g, enum clime_pause mode);
/* Who is here goes on to its end, who comes waits; paused when the last has left. CLIME_ERR_TIMEOUT after limit_us, and
 * CLIME_ERR_ABORTED once given_up(arg), which is asked often: the door is open again. CLIME_ERR_UNAVAILABLE when
 * somebody has resumed meanwhile. */
enum clime_err clime_engine_pause_when_done(struct clime_engine *g, int64_t limit_us, bool (*given_up)(void *arg),
                                            void *arg, struct clime_error *e);
void clime_engine_resume(struct clime_engine *g);
/* The cache. CLIME_ERR_BUSY unless idle; running: who runs gives its KV up as well, and computes it anew. */
enum clime_err clime_engine_flush(struct clime_engine *g, bool running, struct clime_error *e);

/* Where weights come from, in the model's layout and type. */
struct clime_weight_source {
    enum { CLIME_FROM_HOST, CLIME_FROM_DEVICE, CLIME_FROM_OWNER, CLIME_FROM_PARTS } kind;
    const void *flat; /* host or device memory, copied */
    /* FROM_OWNER: [n_handles] of memory that stays another process's: one with all weights (clime_model_map), or one
     * with a share for each of the server's devices (clime_model_open_share) */
    const uint8_t (*handles)[CLIME_SHARE_BYTES];
    int n_handles;
    struct clime_weight_parts parts; /* FROM_PARTS: copied by each of the server's devices, and the sum compared */
    const bool *slices;              /* FROM_DEVICE: [layout.n_slices] the tensors that change; NULL = all do */
};

/* Replaces the weights at a step boundary. n_inflight: sequences it met. CLIME_ERR_INPUT for a part of them where the
 * rest is not there, is not the server's own, or lies on several devices. */
enum clime_err clime_engine_update(struct clime_engine *g, const struct clime_weight_source *from, const char *label,
                                   enum clime_inflight inflight, int *n_inflight, struct clime_error *e);

/* The owner of mapped weights is about to rewrite them: when this returns no step runs, and none will until the next
 * update. New requests are refused meanwhile; those held are ended after limit_us, for the owner may be gone.
 * CLIME_ERR_INPUT when the weights are the model's own. */
enum clime_err clime_engine_writing(struct clime_engine *g, int64_t limit_us, struct clime_error *e);

/* Device memory that may be lent to others while no request is in flight (CLIME_ERR_BUSY otherwise). KV loses what it
 * held, the prefix cache with it. Weights come back by the next full update; taking their memory back does not bring
 * them. */
enum clime_memory_tag { CLIME_MEMORY_KV = 1, CLIME_MEMORY_WEIGHTS = 2 };
struct clime_memory_change {
    size_t kv, weights;             /* bytes given back or taken */
    size_t free_before, free_after; /* of the device */
};
enum clime_err clime_engine_give_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e);
/* CLIME_ERR_LIMIT: the memory is not there; what came back before stays. */
enum clime_err clime_engine_take_back(struct clime_engine *g, unsigned tags, struct clime_memory_change *out,
                                      struct clime_error *e);

/* Gives the engine a trace to record its steps in (trace.h), and takes back the one that it had, or NULL: then nothing
 * is recorded. Owned by whoever has it. */
struct clime_trace;
void clime_engine_trace(struct clime_engine *g, struct clime_trace *give, struct clime_trace **out);

/* n_bytes of the weights, from byte `at` of the layout on, into the host's memory. CLIME_ERR_UNAVAILABLE without
 * weights, CLIME_ERR_INPUT where several devices have a share each. */
enum clime_err clime_engine_read_weights(struct clime_engine *g, size_t at, size_t n_bytes, void *h_out,
                                         struct clime_error *e);
bool clime_engine_has_weights(struct clime_engine *g); /* a full set, in force; any thread */
unsigned clime_engine_lent(struct clime_engine *g);    /* tags whose memory is given back */
/* The weights stay and are called otherwise from here on; so are the tokens of who runs. */
void clime_engine_relabel(struct clime_engine *g, const char *label);

/* True when the engine thread answers within the time, or has finished a step within it. */
bool clime_engine_alive(struct clime_engine *g, int64_t timeout_us);
/* True while the owner of the weights rewrites them within its time. */
bool clime_engine_held(struct clime_engine *g);
bool clime_engine_dead(struct clime_engine *g); /* the device failed */
const struct clime_weight_label *clime_engine_version(struct clime_engine *g);

struct clime_loads {
    int n_running, n_waiting; /* outputs in the engine, and in flight outside of it (counted as waiting) */
    int n_used_tokens, n_total_tokens, max_running;
    int64_t n_waiting_tokens; /* prompt tokens not computed yet */
    double gen_throughput;    /* sampled tokens a second, over the last second of work; 0 after 2 s without */
    double hit_rate;          /* of prompt tokens, since start */
    int64_t n_retracted, n_generated, n_prompt, n_steps;
    int64_t n_draw_steps;                 /* a sequence that drew in a step, summed over both */
    int64_t n_guesses, n_right;           /* tokens guessed, and of those the ones that were drawn */
    int64_t n_overlapped;                 /* of the steps: the next one was started before their results were read */
    int64_t start_us, wait_us, result_us; /* planning and starting steps, waiting for the device, taking results */
    bool paused;
};
void clime_engine_loads(struct clime_engine *g, struct clime_loads *out);

/* Tokens that a step gives a sequence, since start; 0 before the first. */
static inline double clime_loads_accept_length(const struct clime_loads *l) {
    return l->n_draw_steps ? (double)(l->n_draw_steps + l->n_right) / (double)l->n_draw_steps : 0;
}

#endif
