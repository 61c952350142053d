/* A job: one request in the server, with its outputs and events.
 *
 *   job      one HTTP request: one or more outputs with one reply. An HTTP worker makes it, sleeps until it is closed,
 *            then frees it.
 *   output   one sampled continuation: batch item i with n samples gives outputs i*n .. i*n + n-1.
 *   event    an engine message about an output: a token, prompt log-probabilities, the end.
 *   framer   how an endpoint writes a stream (native, chat, completions).
 *   parse    an output's text as segments (text/output/segments.h): content, reasoning, tool calls.
 *
 * Threads: until submission the worker owns everything. Then the engine reads the first part of an output and the
 * emitter (one per job, by `shard`) owns the second part, which the worker reads once the job is closed. The engine's
 * last event closes an output; the engine never touches it again.
 */
#ifndef CLIME_SERVER_JOB_JOB_H
#define CLIME_SERVER_JOB_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/http/server.h"
#include "server/job/sampling_params.h"
#include "server/job/stop_text.h"
#include "text/grammar/grammar.h"
#include "text/output/output_parser.h"
#include "text/tokenizer.h"

#define CLIME_MAX_RID 256
#define CLIME_MAX_TOP_LOGPROBS 256
#define CLIME_MAX_CHOSEN_LOGPROBS 1024
#define CLIME_MAX_OUTPUTS 4096 /* per request */

/* A weight version as reported to clients. Labels live until the server exits, so that replies may point to them. */
struct clime_weight_label {
    uint64_t number; /* number of weight changes */
    const char *name;
    const struct clime_weight_label *older;
};

enum clime_finish_type { CLIME_FINISH_NONE, CLIME_FINISH_STOP, CLIME_FINISH_LENGTH, CLIME_FINISH_ABORT };

struct clime_finish {
    enum clime_finish_type type;
    int32_t matched_id;           /* STOP by a token; -1 = by a string */
    struct clime_str matched_str; /* STOP by a string: borrowed from the parameters */
    const char *message;          /* ABORT: static text */
    int status;                   /* ABORT: HTTP status, 0 = none (aborted on request) */
};

/* Log-probabilities besides a position's own: the n_top largest, then the n_ids requested. One malloc. */
struct clime_lp_extra {
    int n_top, n_ids;
    int rank; /* of a prompt token, 1 = the largest; 0 = not requested */
    struct {
        int32_t id;
        float logp;
    } at[];
};

/* A token's sampling support: the ids left by top-k, top-p, min-p and edits, ascending. One malloc. */
struct clime_sampling_mask {
    float logp; /* the token's, over these ids alone */
    bool lacks; /* more than CLIME_MAX_KEPT: the output fails */
    int n;
    int32_t ids[];
};

struct clime_logp_options {
    bool wanted;               /* return_logprob */
    int64_t start;             /* logprob_start_len; -1 = no prompt log-probabilities */
    int top;                   /* top_logprobs_num */
    bool text;                 /* return_text_in_logprobs */
    bool mask;                 /* return_sampling_mask */
    bool ranks;                /* of the prompt's tokens */
    double prompt_temperature; /* 1 unless logprob_temperature says otherwise */
    int n_ids;                 /* token_ids_logprob */
    const int32_t *ids;
};

struct clime_version_run { /* consecutive tokens of one version */
    const struct clime_weight_label *label;
    bool kept_kv; /* their context has KV of older weights (an update with `keep`) */
    int count;
};

struct clime_draft_counts { /* of one output */
    int n_steps;            /* steps in which it drew */
    int n_guesses, n_right; /* tokens guessed, and how many were right */
};

struct clime_seq;

struct clime_output {
    /* set before submission, constant after */
    struct clime_job *job;
    int index;  /* within the job */
    int prompt; /* index of its prompt in the batch */
    int sample; /* 0 .. n-1 */
    struct clime_str rid;
    const int32_t *ids; /* the prompt, borrowed from the job */
    int n_prompt;
    const struct clime_sampling_params *params;
    const struct clime_logp_options *logp;
    uint64_t seed;
    uint64_t salt;                 /* prefix cache salt */
    enum clime_grammar_lead lead;  /* where in its format the output begins */
    struct clime_grammar *grammar; /* constrains the output; a reference. NULL = none */
    int max_new;                   /* max_new_tokens, cut to the context */
    int n_resumed;                 /* tokens of `out` from an earlier reply (server/api/resume.h) */
    size_t resumed_text;           /* final bytes of their text */
    atomic_bool unwanted;          /* set by any thread: the engine ends it at its next sweep, or at admission */
    struct clime_seq *seq;         /* made at submission, then the engine's */

    /* emitter, then worker */
    struct clime_ids out;        /* sampled ids */
    uint32_t *text_at;           /* [out.size] where in the text each token began */
    struct clime_stop_text text; /* the decoded text */
    struct clime_parse parse;    /* the text as segments */
    float *out_logp;             /* [out.size] */
    uint32_t *out_routing;       /* [out.size] */
    int32_t *choices;            /* [n_choices][job->choices_width] experts, set at the end if requested */
    int n_choices;
    struct clime_lp_extra **extra;      /* [out.len] or NULL */
    struct clime_sampling_mask **masks; /* [out.len] or NULL */
    float *prompt_logp;                 /* [n_prompt] from position prompt_first on */
    struct clime_lp_extra **prompt_extra;
    int prompt_first, n_prompt_logp;
    struct clime_version_run *runs;
    int n_runs;
    const struct clime_weight_label *version; /* current when it finished */
    struct clime_finish finish;
    bool cut;    /* a stop string was found: later tokens are dropped */
    bool closed; /* the engine's last event came */
    int cached_tokens, n_retractions;
    struct clime_draft_counts drafts;
    int64_t first_token_us, finished_us;
    /* streams */
    int n_written; /* ids already passed to the framer */
    bool written_end, touched;
    void *cursor; /* the framer's: its progress in this output */
};

struct clime_event {
    struct clime_output *out;
    int shard; /* of out's job; copied, since the job may be freed once its last event is posted */
    enum { CLIME_EVENT_TOKEN, CLIME_EVENT_PROMPT, CLIME_EVENT_CLOSE } kind;
    int32_t id; /* TOKEN: the token; PROMPT: the first position */
    float logp;
    uint32_t routing;                 /* TOKEN: hash of the experts that produced it; 0 = unknown */
    bool kept_kv;                     /* TOKEN: its context has KV of older weights */
    int n;                            /* PROMPT: positions */
    int cached_tokens, n_retractions; /* so far */
    struct clime_draft_counts drafts; /* so far */
    const struct clime_weight_label *version;
    struct clime_lp_extra *extra;         /* TOKEN: owned by the event */
    struct clime_sampling_mask *mask;     /* TOKEN: owned by the event, or NULL */
    float *prompt_logp;                   /* PROMPT: [n], owned by the event */
    struct clime_lp_extra **prompt_extra; /* PROMPT: [n] or NULL, owned by the event */
    int32_t *choices;                     /* CLOSE: experts or NULL, owned by the event */
    int n_choices;
    struct clime_finish finish; /* TOKEN: set on the last one; CLOSE: set if no token set it */
};

/* A framer writes a stream. It keeps its progress in the output's cursor, zeroed at the start and private to it. */
struct clime_framer {
    size_t cursor_bytes;
    const char *heartbeat; /* keep-alive bytes of an idle stream; NULL = readers take every line for data */
    void (*begin)(struct clime_job *j, struct clime_buf *sse); /* before the first news; NULL = writes nothing */
    /* Appends events for one output's new tokens (and its end, when out->finish is set) to sse. */
    void (*news)(struct clime_job *j, struct clime_output *out, struct clime_buf *sse);
    void (*end)(struct clime_job *j, struct clime_buf *sse); /* after the last output */
    bool resumable; /* a broken stream can be resumed from its events (server/api/resume.h) */
};

struct clime_job {
    struct clime_arena arena; /* parsed request */
    struct clime_output *outs;
    int n_outs, n_prompts, n_samples; /* n_outs = n_prompts * n_samples */
    bool is_list;                     /* the reply is a list */
    bool stream;
    bool incremental; /* streams send only new text */
    bool begun;       /* the framer's begin was called; emitter */
    bool rids_given;  /* set by the client, so they may collide */
    int shard;        /* emitter number */
    int64_t received_us;
    const struct clime_framer *framer;
    struct clime_output_format format; /* how outputs are parsed */
    const int32_t *kept;               /* [n_kept] special tokens in the format's markers; borrowed */
    int n_kept;
    int n_repeats;                  /* how often a reply repeats an output's numbers */
    struct clime_http_request *rq;  /* the waiting client's; valid while the job is in the table */
    struct clime_http_stream *http; /* streaming */
    void *endpoint;                 /* the endpoint's own data, for its framer */
    const struct clime_tokenizer *tokenizer;
    bool choices_wanted; /* return the experts chosen from position choices_from on */
    int choices_from;
    int choices_width;  /* experts per position, over all layers */
    bool drafting;      /* drafting is on: the reply has its statistics */
    const char *device; /* kind of device, for the reply; NULL = unknown */

    pthread_mutex_t lock;
    pthread_cond_t cond;                             /* closed */
    bool closed;                                     /* all outputs closed and, for a stream, the last byte written */
    bool broken;                                     /* the stream failed; emitter */
    int n_open;                                      /* outputs not closed; emitter */
    int touched_at;                                  /* index in the emitter's list of jobs with news; -1 = not in it */
    struct clime_job *next_submitted;                /* the engine's inbox */
    struct clime_job *next_in_table, *prev_in_table; /* job_table.c */
};

struct clime_job *clime_job_new(size_t arena_bytes, const struct clime_tokenizer *t);
void clime_job_free(struct clime_job *j); /* closed, or never submitted */

/* Allocates and links n_prompts * n outputs, with cursors when the job streams; the caller fills their first part. */
void clime_job_outputs(struct clime_job *j, int n_prompts, int n_samples);

/* Appends an event's token, its extra and mask (now owned by the output) and its text, and sets the finish: by the
 * limit, a stop string or stop_regex match, or a stop token, in this order (SGLang's). True on a stop string or match,
 * or when the search failed: nothing may follow. */
bool clime_output_token(struct clime_output *o, const struct clime_event *ev);

/* Most ids in a token's sampling mask, by the request alone; 0 = none requested. */
int clime_output_mask_room(const struct clime_output *o);

/* Sampled tokens up to the end of the reasoning. */
int clime_output_reasoning_tokens(const struct clime_output *o);

/* Waits until closed or the deadline; true when closed. */
bool clime_job_wait(struct clime_job *j, int64_t deadline_us);
void clime_job_close(struct clime_job *j); /* the emitter's last access */

#endif
