/* Internals of trainer/env: tasks, and calls that wait for the task's owner. */
#ifndef CLIME_TRAINER_ENV_ENVIRONMENTS_INT_H
#define CLIME_TRAINER_ENV_ENVIRONMENTS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/arena.h"
#include "common/rng.h"
#include "text/chat/allowed_tools.h"
#include "text/chat/responses_answer.h"
#include "text/output/output_parser.h"
#include "text/tokenizer.h"
#include "trainer/env/environments.h"
#include "trainer/env/session.h"

#define CLIME_ENV_MAX_STOP 16
#define CLIME_ENV_MODEL "policy" /* the model's name in sessions */

/* A turn's request to the policy; owns nothing. */
struct clime_env_ask {
    bool chat;                        /* with messages */
    bool count;                       /* no answer, only the prompt's token count */
    bool one_call;                    /* the first tool call ends the answer */
    bool only_known;                  /* calls of unknown tools are text */
    struct clime_str messages, tools; /* raw JSON as in chat completions; tools may be absent (ptr NULL) */
    const struct clime_tools *known;  /* the parsed tools; NULL = none */
    struct clime_str custom;          /* the client's tools, raw JSON, if some are custom */
    bool has_ids;                     /* ids are the whole context; else they follow the newest turn */
    const int32_t *ids;               /* [n_ids] */
    size_t n_ids;
    struct clime_str text; /* text after the newest turn and ids; ptr NULL = none */
    int64_t max_new;       /* -1 = the run's limit */
    const char *stop[CLIME_ENV_MAX_STOP];
    int n_stop;
};

/* Parser of an answer, which may still grow: its text and what is in it. One thread at a time. */
struct clime_env_reading {
    const struct clime_environments *v;
    const struct clime_env_ask *ask;
    struct clime_detok detok;
    struct clime_buf text;    /* without the end-of-turn token */
    size_t n_safe;            /* bytes that later tokens cannot change */
    struct clime_parse parse; /* chat: reasoning, content and calls in the safe text */
    size_t *begins;           /* [n] offset in text where each token begins */
    int n, size;              /* tokens read */
    int n_reasoning;          /* reasoning tokens */
    const char *matched;      /* chat: the client's stop string that ended it; NULL = none; points into ask */
};

/* One turn requested by an environment. On its thread's stack until done. */
struct clime_env_call {
    const struct clime_env_ask *ask; /* valid until done */
    struct clime_http_request *rq;   /* its client's, which may disconnect; NULL = none */
    struct clime_env_stream *stream; /* receives the answer as it grows; NULL: only the whole answer; borrowed */
    pthread_cond_t ended;            /* wakes its thread; private to clime_env_call */
    /* out */
    bool done;
    struct clime_error error; /* code CLIME_OK: the fields below are valid */
    /* set when the turn begins */
    int turn;                          /* its number in the session */
    int64_t n_prompt;                  /* tokens of the context */
    struct clime_ids context;          /* the context of a call that only counts */
    const struct clime_tokenizer *tok; /* borrowed */
    int64_t created;                   /* seconds since 1970 */
    double temperature, top_p;         /* sampling parameters */
    char rid[112];
    /* set when it ends */
    struct clime_sample *answer;   /* prompt: the context; response: the policy's tokens */
    struct clime_env_reading said; /* the whole answer, parsed */
    char version_name[24];         /* of the weights */
};
void clime_env_call_free(struct clime_env_call *c); /* frees what it owns; reusable */

/* The result of a task from an environment: an error, or the samples it produced. */
struct clime_env_part {
    int turn;        /* the sample is this turn's path; -1 = the newest turn's */
    bool has_reward; /* else the run's reward grades the response */
    struct clime_reward reward;
    char *metadata; /* JSON object, owned; NULL = keep the prompt's */
    bool truncated; /* the sample counts as ended by a limit */
};
struct clime_env_result {
    struct clime_env_part *parts; /* [n_parts] owned */
    int n_parts;
    bool every_path; /* the one part applies to the path of every leaf turn */
    char *error;     /* owned; NULL = none */
};
struct clime_env_part *clime_env_result_add(struct clime_env_result *r, int turn); /* valid until the next one */
void clime_env_result_free(struct clime_env_result *r);

#define CLIME_ENV_PLACES 1024 /* a power of two */

enum clime_task_state { CLIME_TASK_WAITING, CLIME_TASK_LEASED };

/* A call or result waiting for those before it. On its thread's stack. */
struct clime_env_turn_wait {
    struct clime_env_turn_wait *next;
    pthread_cond_t woken;
    bool is_next; /* its turn has come, unless the lease is over */
};

struct clime_task {
    struct clime_task *next, *next_leased; /* next in the table; next in its hash bucket of leased tasks */
    struct clime_request *r;
    enum clime_task_state state;
    char id[CLIME_RANDOM_ID + 1]; /* of the lease */
    int attempts;                 /* leases so far */
    int64_t lease_until_us;
    struct clime_env_call *call;                         /* waiting for the owner, or being served */
    bool taken;                                          /* a call or result is using the task: they are serialised */
    struct clime_env_turn_wait *waiting, **last_waiting; /* the next ones, in order */
    int n_queued;
    pthread_cond_t changed; /* wakes the owner */
    /* result */
    bool has_result;
    struct clime_env_result result;
    char refused[200]; /* why the last posted result was invalid; "" = none was */
    /* owner only */
    struct clime_session *session;
    struct clime_tok_scratch *scratch;
    int last_turn; /* -1 = none */
};

struct clime_environments {
    struct clime_environments_options o;
    struct clime_chat_template template; /* plain.compiled NULL: the tokenizer has no template */
    struct clime_output_format format;   /* answers' format, detected from the template; tools are per request */
    struct clime_ids markers;            /* special tokens in its markers */
    struct clime_http_server *http;
    struct clime_env_commands *commands; /* NULL without --environment-command */
    pthread_mutex_t lock;
    pthread_cond_t offered;                      /* a task is available */
    struct clime_task *tasks;                    /* in order of offer */
    struct clime_task *leased[CLIME_ENV_PLACES]; /* hash table by lease id */
    int n_slots;                                 /* requests that may wait at a time */
    int n_waiting;                               /* of these, waiting for a task */
    /* with a generate hook */
    pthread_cond_t hook_left; /* a hook's thread has ended or left our functions */
    int n_hooks;              /* hook threads */
    int n_lost;               /* of these, threads whose task is over */
    int n_inside;             /* threads inside our functions */
    bool closing;             /* calls are refused */
    bool said_refused;        /* logged once: a result was refused */
    atomic_bool said_forced;  /* logged once: a call cannot be forced */
    bool gone;                /* shared data is freed: threads exit silently */
};

/* leases.c, for the handlers (HTTP workers) and hooks: */

/* Leases the oldest waiting task, described by write (under the lock). NONE: none until until_us, or the client left.
 * BUSY: too many requests wait for one. */
enum clime_lease_answer { CLIME_LEASE_NONE, CLIME_LEASE_GIVEN, CLIME_LEASE_BUSY };
enum clime_lease_answer clime_env_lease(struct clime_environments *v, int64_t until_us, struct clime_http_request *rq,
                                        void (*write)(const struct clime_environments *v, const struct clime_task *t,
                                                      struct clime_buf *out),
                                        struct clime_buf *out);
/* Passes the call to the task's owner once earlier calls are done, and waits for it. CLIME_ERR_NOT_FOUND: no such
 * lease, or it is over. CLIME_ERR_BUSY: too many wait. Otherwise the call's own error. */
enum clime_err clime_env_call(struct clime_environments *v, struct clime_str id, struct clime_env_call *call,
                              struct clime_error *e);
/* Ends the task with *r; takes ownership of it on CLIME_OK. A turn in progress counts as the newest; waiting calls find
 * the task over. A result that names turns waits for earlier calls instead. CLIME_ERR_INPUT: a named turn does not
 * exist, or is named twice. */
enum clime_err clime_env_result(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                struct clime_error *e);
/* The same under the lock. CLIME_ERR_NOT_FOUND: the lease is over. */
enum clime_err clime_env_result_locked(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                       struct clime_error *e);
/* Records that a posted result was invalid; reported if the task ends without one. */
void clime_env_refuse(struct clime_environments *v, struct clime_str id, const struct clime_error *why);
enum clime_err clime_env_renew(struct clime_environments *v, struct clime_str id, struct clime_error *e);

/* task_body.c: a task as JSON; the request body for a lease ({"wait_s"?}, may be empty); the body that ends a task: one
 * of "reward", "samples" (a reward for each of several turns), "error" and "renew": true. *e is empty on entry. */
void clime_env_task_write(const struct clime_environments *v, const struct clime_task *t, struct clime_buf *out);
enum clime_err clime_env_lease_read(struct clime_str body, double *wait_s, struct clime_error *e);
/* *r is zero on entry; the caller frees it in any case. */
enum clime_err clime_env_result_read(struct clime_str body, struct clime_env_result *r, bool *renew,
                                     struct clime_error *e);

/* body.c: parses an HTTP body. */
enum clime_env_api {
    CLIME_ENV_GENERATE,
    CLIME_ENV_CHAT,
    CLIME_ENV_RESPONSES,
    CLIME_ENV_MESSAGES,
    CLIME_ENV_COUNT,        /* Messages' */
    CLIME_ENV_INPUT_TOKENS, /* Responses' */
    CLIME_ENV_TOKENIZE      /* a chat's context, as vLLM's /tokenize */
};
struct clime_env_body {
    enum clime_env_api api;
    struct clime_env_ask ask;     /* points into the fields below and the request's body */
    bool stream, usage, logprobs; /* the reply is a stream; includes usage (chat); includes log-probabilities */
    bool token_ids, ids_as_text;  /* CHAT: the reply includes token ids; names tokens by id */
    bool forced;                  /* tool_choice requires a call: treated as auto */
    struct clime_str format;      /* the type of a response format other than text, */
    const char *format_of;        /* and its member */
    bool threaded;                /* MESSAGES, COUNT: refused, with the message that the client's package reacts to */
    struct clime_responses_asked asked; /* RESPONSES */
    struct clime_allowed_tools allowed; /* tool_choice */
    struct clime_tools tools;
    struct clime_arena arena;
    struct clime_ids ids;
};
enum clime_err clime_env_body_read(struct clime_str body, enum clime_env_api api, struct clime_env_body *b,
                                   struct clime_error *e);
void clime_env_body_free(struct clime_env_body *b);

/* reply.c: writes a whole answer in the requested API's format; the parts shared with streams. */
void clime_env_reply(const struct clime_env_body *b, const struct clime_env_call *c, struct clime_buf *out);
void clime_env_open_chat(struct clime_jw *w, const struct clime_answer *a, int turn, const char *object,
                         struct clime_buf *to);
struct clime_env_numbers { /* of tokens */
    const struct clime_tokenizer *tok;
    const int32_t *ids;   /* [n] */
    const float *logp;    /* [n] */
    const size_t *begins; /* [n] offset in the answer's text where each begins */
    int n;
    bool as_ids; /* a token is named "token_id:5", not by its text */
};
void clime_env_put_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n);
struct clime_answer_tokens clime_env_tokens(const struct clime_env_numbers *n); /* borrows n */
void clime_env_close_choice(struct clime_jw *w, const char *finish, const struct clime_env_numbers *n);
void clime_env_chat_usage(struct clime_jw *w, const struct clime_answer *a);

/* stream.c: streams a growing answer as events. The task's owner reports tokens, the handler sends events. */
struct clime_env_stream;
struct clime_env_stream *clime_env_stream_new(const struct clime_env_body *b, struct clime_env_call *c);
void clime_env_stream_free(struct clime_env_stream *s);
/* Owner's calls. begin: the call's first fields are set, prompt: its tokens. tell: a listener's news. agrees: the whole
 * answer begins with the tokens reported. end: no more tokens. */
void clime_env_stream_begin(struct clime_env_stream *s, const struct clime_environments *v, bool skip_special,
                            const int32_t *prompt, int n_prompt);
bool clime_env_stream_tell(struct clime_env_stream *s, const struct clime_partial *so_far);
bool clime_env_stream_agrees(struct clime_env_stream *s, const struct clime_sample *whole);
void clime_env_stream_end(struct clime_env_stream *s);
bool clime_env_stream_dead(const struct clime_env_stream *s); /* its client does not read it; any thread */
/* Handler's calls, as text: appends events of new tokens; the final events, or those of an error. */
void clime_env_stream_news(struct clime_env_stream *s, struct clime_buf *out);
void clime_env_stream_last(struct clime_env_stream *s, const struct clime_error *e, struct clime_buf *out);
/* Handler's calls, over HTTP. serve: waits up to wait_us for new tokens and sends them, or a comment when nothing was
 * sent for heartbeat_us (0 = never). close: the call is done. False: it failed before anything was sent, so a status
 * can be returned. */
void clime_env_stream_serve(struct clime_env_stream *s, int64_t wait_us, int64_t heartbeat_us);
bool clime_env_stream_close(struct clime_env_stream *s, const struct clime_error *e);

/* answer.c: parses the policy's answers. choose_format: detects the format from the template, at open (on a thread with
 * 1 MiB of stack). begin: an answer, from its prompt's tokens. feed: ids[n] are all tokens so far; last: no more
 * follow; completed: not cut by a limit. break: the answer broke off, so an unfinished call is dropped.
 * clime_env_answer: the answer for its writers (whole: the sample, NULL while it grows). */
void clime_env_choose_format(struct clime_environments *v);
void clime_env_reading_begin(struct clime_env_reading *r, const struct clime_environments *v,
                             const struct clime_env_ask *ask, bool skip_special, const int32_t *prompt, int n_prompt);
void clime_env_reading_feed(struct clime_env_reading *r, const int32_t *ids, int n, bool last, bool completed);
void clime_env_reading_break(struct clime_env_reading *r);
void clime_env_reading_free(struct clime_env_reading *r);
struct clime_answer clime_env_answer(const struct clime_env_call *c, const struct clime_env_reading *said,
                                     const struct clime_sample *whole);

/* leases.c, for the owner; under the lock. let_next: frees the task for the next waiting call. end_lease: all waiting
 * calls find no task. who: how messages name the reporter of results. */
#define CLIME_ENV_CHECK_US 200000 /* interval at which waiters check deadlines and stop flags */
void clime_env_let_next(struct clime_task *t);
void clime_env_give_lease(struct clime_environments *v, struct clime_task *t);
void clime_env_end_lease(struct clime_environments *v, struct clime_task *t);
const char *clime_env_who(const struct clime_environments *v);

/* hook.c: starts a thread for the task that runs the library's `generate`; false: no thread available. Under the lock,
 * with the task leased. The thread ends with a result, or without one when the lease is over. */
bool clime_env_hook_start(struct clime_environments *v, const struct clime_task *t);

/* turn.c: computes one turn of the task for the call; sets its answer or error. Owner's thread, without the lock. */
void clime_env_turn(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call,
                    clime_turn_fn *turn, void *arg);

/* commands.c: n copies of a shell command, restarted when they end; CLIME_URL is the interface's address. */
struct clime_env_commands;
enum clime_err clime_env_commands_start(const char *command, int n, const char *url, const char *api_key,
                                        const char *run_dir, struct clime_env_commands **out, struct clime_error *e);
void clime_env_commands_stop(struct clime_env_commands *c); /* NULL is fine */
/* True when no copy can be started; *e is the reason. Any thread; NULL is fine. */
bool clime_env_commands_failed(struct clime_env_commands *c, struct clime_error *e);

#endif
