/* What the files of trainer/env share: a task, and a call that waits for its owner. Internal. */
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
#define CLIME_ENV_MODEL "policy" /* what a session calls the model */

/* What is asked of the policy in one turn; nothing in it is owned. */
struct clime_env_ask {
    bool chat;                        /* by messages */
    bool count;                       /* no answer: how many tokens its prompt has */
    bool one_call;                    /* the first call of a tool ends the answer */
    bool only_known;                  /* what calls none of the tools is text */
    struct clime_str messages, tools; /* raw JSON as of chat completions; tools may be absent (ptr NULL) */
    const struct clime_tools *known;  /* the tools, read; NULL where there are none */
    struct clime_str custom;          /* the tools as the client gave them, raw JSON, where some are custom */
    bool has_ids;                     /* ids are the whole context; else they come after the newest turn */
    const int32_t *ids;               /* [n_ids] */
    size_t n_ids;
    struct clime_str text; /* what comes after the newest turn and ids; ptr NULL = nothing */
    int64_t max_new;       /* -1 = the run's limit */
    const char *stop[CLIME_ENV_MAX_STOP];
    int n_stop;
};

/* An answer's tokens as text, and what is in it; it may still grow. One thread at a time. */
struct clime_env_reading {
    const struct clime_environments *v;
    const struct clime_env_ask *ask;
    struct clime_detok detok;
    struct clime_buf text;    /* without the token that ends a turn */
    size_t n_safe;            /* bytes of it that no later token takes back */
    struct clime_parse parse; /* chat: reasoning, content and calls in what is safe */
    size_t *begins;           /* [n] where in the text each token begins */
    int n, size;              /* tokens read */
    int n_reasoning;          /* tokens of it */
    const char *matched;      /* chat: the stop string of the client's that ended it; NULL = none; of ask */
};

/* One turn that an environment asks for. On the stack of its thread until done. */
struct clime_env_call {
    const struct clime_env_ask *ask; /* valid until done */
    struct clime_http_request *rq;   /* of its client, who may leave; NULL = none */
    struct clime_env_stream *stream; /* where the answer goes while it grows; NULL: it is wanted whole; borrowed */
    pthread_cond_t ended;            /* wakes its thread; clime_env_call's */
    /* out */
    bool done;
    struct clime_error error; /* code CLIME_OK: what follows is there */
    /* from the turn's beginning */
    int turn;                          /* its number in the session */
    int64_t n_prompt;                  /* tokens of the context */
    struct clime_ids context;          /* of a call that only counts: which */
    const struct clime_tokenizer *tok; /* borrowed */
    int64_t created;                   /* seconds since 1970 */
    double temperature, top_p;         /* that it is sampled with */
    char rid[112];
    /* at its end */
    struct clime_sample *answer;   /* the context as prompt, the policy's tokens as response */
    struct clime_env_reading said; /* all of it */
    char version_name[24];         /* of the weights */
};
void clime_env_call_free(struct clime_env_call *c); /* what it owns; it may be used again */

/* What an environment says at the end of a task: an error, or the samples that it is to give. */
struct clime_env_part {
    int turn;        /* whose path is the sample; -1 = the newest turn's */
    bool has_reward; /* else the run's own reward judges the response */
    struct clime_reward reward;
    char *metadata; /* JSON object, owned; NULL = the prompt's stays */
    bool truncated; /* the sample counts as one that ended by a limit */
};
struct clime_env_result {
    struct clime_env_part *parts; /* [n_parts] owned */
    int n_parts;
    bool every_path; /* the one part is about the path of every turn that nothing goes on from */
    char *error;     /* owned; NULL = none */
};
struct clime_env_part *clime_env_result_add(struct clime_env_result *r, int turn); /* valid until the next one */
void clime_env_result_free(struct clime_env_result *r);

#define CLIME_ENV_PLACES 1024 /* a power of two */

enum clime_task_state { CLIME_TASK_WAITING, CLIME_TASK_LEASED };

/* A call or a result that waits for those before it. On the stack of its thread. */
struct clime_env_turn_wait {
    struct clime_env_turn_wait *next;
    pthread_cond_t woken;
    bool is_next; /* it has the task now, unless the lease is over */
};

struct clime_task {
    struct clime_task *next, *next_leased; /* of the table; of its place among the leased */
    struct clime_request *r;
    enum clime_task_state state;
    char id[CLIME_RANDOM_ID + 1]; /* of the lease */
    int attempts;                 /* leases so far */
    int64_t lease_until_us;
    struct clime_env_call *call; /* waiting for the owner, or in its hands */
    bool taken;                  /* calls and results come one after another: one has the task */
    struct clime_env_turn_wait *waiting, **last_waiting; /* the next ones, in order */
    int n_queued;
    pthread_cond_t changed; /* wakes the owner */
    /* the result */
    bool has_result;
    struct clime_env_result result;
    char refused[200]; /* why the last one that was posted is none; "" = none was refused */
    /* the owner's alone */
    struct clime_session *session;
    struct clime_tok_scratch *scratch;
    int last_turn; /* -1 = none */
};

struct clime_environments {
    struct clime_environments_options o;
    struct clime_chat_template template; /* plain.compiled NULL: the policy's tokenizer has none */
    struct clime_output_format format; /* of the policy's answers, as the template shows; its tools are the request's */
    struct clime_ids markers;          /* special tokens that its markers are made of */
    struct clime_http_server *http;
    struct clime_env_commands *commands; /* NULL without --environment-command */
    pthread_mutex_t lock;
    pthread_cond_t offered;                      /* a task is there to be leased */
    struct clime_task *tasks;                    /* in the order in which they were offered */
    struct clime_task *leased[CLIME_ENV_PLACES]; /* by a hash of the lease's id */
    int n_slots;                                 /* requests that may wait at a time */
    int n_waiting;                               /* of which for a task */
    /* with a generate hook */
    pthread_cond_t hook_left; /* a hook's thread has ended, or is outside of our functions */
    int n_hooks;              /* threads of it */
    int n_lost;               /* of which the task is over */
    int n_inside;             /* that are in one of our functions */
    bool closing;             /* their calls are refused */
    bool said_refused;        /* that a result was, in the log */
    atomic_bool said_forced;  /* that a call cannot be forced */
    bool gone;                /* what they could be given is freed: they end without a word */
};

/* leases.c, for the handlers (HTTP workers) and hooks: */

/* The oldest task that waits, leased now and described by write (under the lock). NONE: none came until then, or the
 * client has left. BUSY: too many wait for one already. */
enum clime_lease_answer { CLIME_LEASE_NONE, CLIME_LEASE_GIVEN, CLIME_LEASE_BUSY };
enum clime_lease_answer clime_env_lease(struct clime_environments *v, int64_t until_us, struct clime_http_request *rq,
                                        void (*write)(const struct clime_environments *v, const struct clime_task *t,
                                                      struct clime_buf *out),
                                        struct clime_buf *out);
/* Hands the call to the task's owner, when those that came before it are done, and waits until it is done.
 * CLIME_ERR_NOT_FOUND: no such lease (any more). CLIME_ERR_BUSY: too many wait. Otherwise the call's own error. */
enum clime_err clime_env_call(struct clime_environments *v, struct clime_str id, struct clime_env_call *call,
                              struct clime_error *e);
/* Takes *r over when it returns CLIME_OK. The turn that is under way is its newest; those that wait find the task over.
 * If it names turns, it waits for the calls that came before it instead. CLIME_ERR_INPUT: it names a turn that is not
 * there, or one twice. */
enum clime_err clime_env_result(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                struct clime_error *e);
/* The same under the lock. CLIME_ERR_NOT_FOUND: the lease is over. */
enum clime_err clime_env_result_locked(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                       struct clime_error *e);
/* What was posted as the result could not be read: it is told where the task ends without one. */
void clime_env_refuse(struct clime_environments *v, struct clime_str id, const struct clime_error *why);
enum clime_err clime_env_renew(struct clime_environments *v, struct clime_str id, struct clime_error *e);

/* task_body.c: a task as JSON; the bodies that ask for one ({"wait_s"?}, which may be empty) and that end one (one of
 * "reward", "samples" (a reward for each of several turns), "error" and "renew": true). *e is empty before. */
void clime_env_task_write(const struct clime_environments *v, const struct clime_task *t, struct clime_buf *out);
enum clime_err clime_env_lease_read(struct clime_str body, double *wait_s, struct clime_error *e);
/* *r is zero before, and is to be freed in any case. */
enum clime_err clime_env_result_read(struct clime_str body, struct clime_env_result *r, bool *renew,
                                     struct clime_error *e);

/* body.c: an HTTP body to what it asks for. */
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
    struct clime_env_ask ask;           /* points into what follows and into the request's body */
    bool stream, usage, logprobs;       /* the reply is events; with log-probabilities; of a chat, with usage */
    bool token_ids, ids_as_text;        /* CHAT: the reply has the tokens' ids; and calls tokens by them */
    bool forced;                        /* tool_choice asks for a call: it is read as auto */
    struct clime_str format;            /* the type of a response format, where it is not text, */
    const char *format_of;              /* and the member that has it */
    bool threaded;                      /* MESSAGES, COUNT: refused, in words that the client's package goes on by */
    struct clime_responses_asked asked; /* RESPONSES */
    struct clime_allowed_tools allowed; /* tool_choice */
    struct clime_tools tools;
    struct clime_arena arena;
    struct clime_ids ids;
};
enum clime_err clime_env_body_read(struct clime_str body, enum clime_env_api api, struct clime_env_body *b,
                                   struct clime_error *e);
void clime_env_body_free(struct clime_env_body *b);

/* reply.c: a whole answer in the form that it was asked for in; the parts of it that a stream has too. */
void clime_env_reply(const struct clime_env_body *b, const struct clime_env_call *c, struct clime_buf *out);
void clime_env_open_chat(struct clime_jw *w, const struct clime_answer *a, int turn, const char *object,
                         struct clime_buf *to);
struct clime_env_numbers { /* of tokens */
    const struct clime_tokenizer *tok;
    const int32_t *ids;   /* [n] */
    const float *logp;    /* [n] */
    const size_t *begins; /* [n] where in the answer's text each begins */
    int n;
    bool as_ids; /* a token is called "token_id:5", not by its text */
};
void clime_env_put_ids(struct clime_jw *w, const char *key, const int32_t *ids, size_t n);
struct clime_answer_tokens clime_env_tokens(const struct clime_env_numbers *n); /* borrows n */
void clime_env_close_choice(struct clime_jw *w, const char *finish, const struct clime_env_numbers *n);
void clime_env_chat_usage(struct clime_jw *w, const struct clime_answer *a);

/* stream.c: an answer as events while it grows. The task's owner tells of tokens, the handler sends them. */
struct clime_env_stream;
struct clime_env_stream *clime_env_stream_new(const struct clime_env_body *b, struct clime_env_call *c);
void clime_env_stream_free(struct clime_env_stream *s);
/* The owner's. begin: the call's beginning is known, and the prompt's tokens are these. tell: a listener's news.
 * agrees: the whole answer begins with what was told. end: no more is told. */
void clime_env_stream_begin(struct clime_env_stream *s, const struct clime_environments *v, bool skip_special,
                            const int32_t *prompt, int n_prompt);
bool clime_env_stream_tell(struct clime_env_stream *s, const struct clime_partial *so_far);
bool clime_env_stream_agrees(struct clime_env_stream *s, const struct clime_sample *whole);
void clime_env_stream_end(struct clime_env_stream *s);
bool clime_env_stream_dead(const struct clime_env_stream *s); /* its client does not read it; any thread */
/* The handler's, as text: appends the events of what is new; those of the call's end, or of its error. */
void clime_env_stream_news(struct clime_env_stream *s, struct clime_buf *out);
void clime_env_stream_last(struct clime_env_stream *s, const struct clime_error *e, struct clime_buf *out);
/* The handler's, over HTTP. serve: waits for something new, at most so long, and sends it, or a comment when nothing
 * was sent for heartbeat_us (0 = none is ever). close: the call is done. False: it failed before anything was sent, and
 * can be answered with a status. */
void clime_env_stream_serve(struct clime_env_stream *s, int64_t wait_us, int64_t heartbeat_us);
bool clime_env_stream_close(struct clime_env_stream *s, const struct clime_error *e);

/* answer.c: how the policy's answers are read: from the template, at open (on a thread with 1 MiB of stack); an answer
 * from its prompt's tokens on: ids[n] are all that there are by now, last: nothing follows, completed: it was not cut
 * by a limit; nothing follows because it broke off, so a call that has no end is none; the answer as its writers see it
 * (whole: the sample, NULL while it grows). */
void clime_env_choose_format(struct clime_environments *v);
void clime_env_reading_begin(struct clime_env_reading *r, const struct clime_environments *v,
                             const struct clime_env_ask *ask, bool skip_special, const int32_t *prompt, int n_prompt);
void clime_env_reading_feed(struct clime_env_reading *r, const int32_t *ids, int n, bool last, bool completed);
void clime_env_reading_break(struct clime_env_reading *r);
void clime_env_reading_free(struct clime_env_reading *r);
struct clime_answer clime_env_answer(const struct clime_env_call *c, const struct clime_env_reading *said,
                                     const struct clime_sample *whole);

/* leases.c, for the owner; under the lock. let_next: the task is free for the next call that waits. end_lease: all that
 * wait find no task. who: how messages name what reports results. */
#define CLIME_ENV_CHECK_US 200000 /* how often one that waits looks at deadlines and stop flags */
void clime_env_let_next(struct clime_task *t);
void clime_env_give_lease(struct clime_environments *v, struct clime_task *t);
void clime_env_end_lease(struct clime_environments *v, struct clime_task *t);
const char *clime_env_who(const struct clime_environments *v);

/* hook.c: begins a thread for the task that acts with it as the library's `generate` says; false: no thread is to be
 * had now. Under the lock, the task is leased. The thread ends with a result, or without one when the lease is over. */
bool clime_env_hook_start(struct clime_environments *v, const struct clime_task *t);

/* turn.c: computes one turn of the task for the call and fills its answer or error. The owner's thread, without the
 * lock. */
void clime_env_turn(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call,
                    clime_turn_fn *turn, void *arg);

/* commands.c: n copies of a shell command, started again when they end; CLIME_URL names the interface. */
struct clime_env_commands;
enum clime_err clime_env_commands_start(const char *command, int n, const char *url, const char *api_key,
                                        const char *run_dir, struct clime_env_commands **out, struct clime_error *e);
void clime_env_commands_stop(struct clime_env_commands *c); /* NULL is fine */
/* No copy can be started any more: *e says why. Any thread; NULL is fine. */
bool clime_env_commands_failed(struct clime_env_commands *c, struct clime_error *e);

#endif
