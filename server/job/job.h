/* A request on its way through the server, and its outputs.
 *
 *   job      one HTTP request: one or more outputs, answered together. Made by an HTTP worker, which sleeps until the
 *            job is closed and then frees it.
 *   output   one sampled continuation: batch item i with n samples gives outputs i*n .. i*n + n-1.
 *   event    what the engine says about an output: a token, prompt log-probabilities, the end.
 *   framer   how an endpoint writes a stream (native, chat, completions).
 *   parse    an output's text as segments (text/output/segments.h): what is content, reasoning, a tool call.
 *
 * Threads: until submission all belongs to the worker. Then the engine reads the first part of an output and the
 * emitter (one per job, by `shard`) owns its second part; the worker reads that after the job is closed. An output
 * closes with the engine's last event about it; after that the engine never touches it again.
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
#define CLIME_MAX_OUTPUTS 4096 /* of one request */

/* A version of the weights as seen outside. Labels live until the server ends, so that replies may point to them. */
struct clime_weight_label {
    uint64_t number; /* the server's count of changes */
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

/* Log-probabilities besides a position's own: the n_top largest, then the n_ids asked for. One malloc. */
struct clime_lp_extra {
    int n_top, n_ids;
    int rank; /* of a prompt's own token, 1 = the largest; 0 = nobody asked */
    struct {
        int32_t id;
        float logp;
    } at[];
};

/* What a token was drawn from: the ids that top-k, top-p, min-p and edits had left, ascending. One malloc. */
struct clime_sampling_mask {
    float logp; /* of the token, over these ids alone */
    bool lacks; /* there were more than CLIME_MAX_KEPT: the output fails */
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

struct clime_version_run { /* consecutive tokens sampled alike */
    const struct clime_weight_label *label;
    bool kept_kv; /* their context held KV of older weights (an update with `keep`) */
    int count;
};

struct clime_draft_counts { /* of one output */
    int n_steps;            /* that drew for it */
    int n_guesses, n_right; /* tokens guessed, and of those the ones that were drawn */
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
    uint64_t salt;                 /* of the prefix cache */
    enum clime_grammar_lead lead;  /* where the output stands when it begins */
    struct clime_grammar *grammar; /* that it must follow; a reference. NULL = none */
    int max_new;                   /* max_new_tokens, cut to the context */
    int n_resumed;                 /* tokens of `out` that an earlier reply brought (server/api/resume.h) */
    size_t resumed_text;           /* bytes of their text that were final */
    atomic_bool unwanted;          /* set by anyone: the engine ends it at its next sweep, or when it comes in */
    struct clime_seq *seq;         /* made at submission, then the engine's */

    /* emitter, then worker */
    struct clime_ids out;        /* sampled ids */
    uint32_t *text_at;           /* [out.size] where in the text each token began */
    struct clime_stop_text text; /* what they say */
    struct clime_parse parse;    /* the text as segments */
    float *out_logp;             /* [out.size] */
    uint32_t *out_routing;       /* [out.size] */
    int32_t *choices;            /* [n_choices][job->choices_width] of experts, where the job wants them, at the end */
    int n_choices;
    struct clime_lp_extra **extra;      /* [out.len] or NULL */
    struct clime_sampling_mask **masks; /* [out.len] or NULL */
    float *prompt_logp;                 /* [n_prompt] from position prompt_first on */
    struct clime_lp_extra **prompt_extra;
    int prompt_first, n_prompt_logp;
    struct clime_version_run *runs;
    int n_runs;
    const struct clime_weight_label *version; /* in force when it finished */
    struct clime_finish finish;
    bool cut;    /* a stop string was found: later tokens are dropped */
    bool closed; /* the engine's last event came */
    int cached_tokens, n_retractions;
    struct clime_draft_counts drafts;
    int64_t first_token_us, finished_us;
    /* streams */
    int n_written; /* ids of which the framer knew at its last news */
    bool written_end, touched;
    void *cursor; /* the framer's own: what it has written of this output */
};

struct clime_event {
    struct clime_output *out;
    int shard; /* of out's job; copied, since the job may be gone once its last event is posted */
    enum { CLIME_EVENT_TOKEN, CLIME_EVENT_PROMPT, CLIME_EVENT_CLOSE } kind;
    int32_t id; /* TOKEN: the token; PROMPT: the first position */
    float logp;
    uint32_t routing;                 /* TOKEN: a hash of the experts that it was drawn by; 0 = not known */
    bool kept_kv;                     /* TOKEN: its context held KV of older weights */
    int n;                            /* PROMPT: positions */
    int cached_tokens, n_retractions; /* so far */
    struct clime_draft_counts drafts; /* so far */
    const struct clime_weight_label *version;
    struct clime_lp_extra *extra;         /* TOKEN: owned by the event */
    struct clime_sampling_mask *mask;     /* TOKEN: owned by the event, or NULL */
    float *prompt_logp;                   /* PROMPT: [n], owned by the event */
    struct clime_lp_extra **prompt_extra; /* PROMPT: [n] or NULL, owned by the event */
    int32_t *choices;                     /* CLOSE: of experts, or NULL; owned by the event */
    int n_choices;
    struct clime_finish finish; /* TOKEN: set on the last one; CLOSE: set when there was no last one */
};

/* A framer writes a stream. It keeps what it has written of an output in the output's cursor, zeroed at the start:
 * nobody else knows how far it is. */
struct clime_framer {
    size_t cursor_bytes;
    const char *heartbeat; /* what a silent stream may say; NULL = its readers take every line for data */
    void (*begin)(struct clime_job *j, struct clime_buf *sse); /* before the first news; NULL = writes nothing */
    /* Appends the events of one output's news (and end, when out->finish is set) to sse. */
    void (*news)(struct clime_job *j, struct clime_output *out, struct clime_buf *sse);
    void (*end)(struct clime_job *j, struct clime_buf *sse); /* after the last output */
    bool resumable; /* what a broken stream has told is enough to go on with it (server/api/resume.h) */
};

struct clime_job {
    struct clime_arena arena; /* parsed request */
    struct clime_output *outs;
    int n_outs, n_prompts, n_samples; /* n_outs = n_prompts * n_samples */
    bool is_list;                     /* the reply is a list */
    bool stream;
    bool incremental; /* streams send only what is new */
    bool begun;       /* the framer's begin was called; emitter */
    bool rids_given;  /* by the client, so they may collide */
    int shard;        /* which emitter */
    int64_t received_us;
    const struct clime_framer *framer;
    struct clime_output_format format; /* how the outputs are read */
    const int32_t *kept;               /* [n_kept] special tokens that the format's markers are made of; borrowed */
    int n_kept;
    int n_repeats;                  /* how many times more than once a reply says an output's numbers */
    struct clime_http_request *rq;  /* whose client waits for it; there while the job is in the table */
    struct clime_http_stream *http; /* streaming */
    void *endpoint;                 /* the endpoint's own data, for its framer */
    const struct clime_tokenizer *tokenizer;
    bool choices_wanted; /* which experts the positions from choices_from on chose */
    int choices_from;
    int choices_width;  /* experts of a position, over all layers */
    bool drafting;      /* the server guesses: the reply says how well */
    const char *device; /* kind that samples it, for the reply; NULL = unknown */

    pthread_mutex_t lock;
    pthread_cond_t cond;                             /* closed */
    bool closed;                                     /* all outputs closed and, for a stream, the last byte written */
    bool broken;                                     /* the stream cannot go on; emitter */
    int n_open;                                      /* outputs not closed; emitter */
    int touched_at;                                  /* place in the emitter's list of jobs with news, -1 = not there */
    struct clime_job *next_submitted;                /* the engine's inbox */
    struct clime_job *next_in_table, *prev_in_table; /* job_table.c */
};

struct clime_job *clime_job_new(size_t arena_bytes, const struct clime_tokenizer *t);
void clime_job_free(struct clime_job *j); /* closed, or never submitted */

/* Allocates and links n_prompts * n outputs, with cursors when the job streams; the caller fills in their first part.
 */
void clime_job_outputs(struct clime_job *j, int n_prompts, int n_samples);

/* One token more, as the event says it, whose extra and mask it takes; its text, and what ends with it: the limit, a
 * stop string or a match of stop_regex, a stop token, in this order (SGLang's). True when it is a stop string or a
 * match, or the search has failed: nothing may follow. */
bool clime_output_token(struct clime_output *o, const struct clime_event *ev);

/* Most ids of a token's sampling mask, as far as the request says it; 0 = none is asked for. */
int clime_output_mask_room(const struct clime_output *o);

/* Sampled tokens up to the end of what the parser took for reasoning. */
int clime_output_reasoning_tokens(const struct clime_output *o);

/* Waits until closed or the deadline; true when closed. */
bool clime_job_wait(struct clime_job *j, int64_t deadline_us);
void clime_job_close(struct clime_job *j); /* the emitter's last touch */

#endif
