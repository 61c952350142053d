/* What the files of trainer/env share: a task, and a call that waits for its owner. Internal. */
#ifndef CLIME_TRAINER_ENV_ENV_INT_H
#define CLIME_TRAINER_ENV_ENV_INT_H

#include <pthread.h>

#include "trainer/env/environments.h"
#include "trainer/env/session.h"

enum clime_call_kind { CLIME_CALL_CHAT, CLIME_CALL_GENERATE };

/* One turn that an environment asks for. On the HTTP worker's stack until done. */
struct clime_env_call {
    enum clime_call_kind kind;
    struct clime_str body; /* the request's, valid until done */
    /* out */
    bool done, stream; /* stream: reply is events */
    struct clime_buf reply;
    struct clime_error error; /* code CLIME_OK: the reply */
};

/* What an environment says at the end of a task. */
struct clime_env_result {
    bool has_reward; /* else the run's own reward judges the response */
    struct clime_reward reward;
    char *error; /* owned; NULL = none */
};
void clime_env_result_free(struct clime_env_result *r);

enum clime_task_state { CLIME_TASK_WAITING, CLIME_TASK_LEASED };

struct clime_task {
    struct clime_task *next;
    struct clime_request *r;
    enum clime_task_state state;
    char id[33];  /* of the lease, hex */
    int attempts; /* leases so far */
    int64_t lease_until_us;
    struct clime_env_call *call; /* waiting for the owner, or in its hands */
    pthread_cond_t changed;      /* wakes the owner */
    /* the result */
    bool has_result;
    struct clime_env_result result;
    /* the owner's alone */
    struct clime_session *session;
    struct clime_tok_scratch *scratch;
    int last_turn; /* -1 = none */
};

struct clime_environments {
    struct clime_environments_options o;
    struct clime_renderer renderer;
    bool has_template;
    struct clime_http_server *http;
    struct clime_env_commands *commands; /* NULL without --environment-command */
    pthread_mutex_t lock;
    pthread_cond_t offered;      /* a task is there to be leased */
    pthread_cond_t answered;     /* a call is done */
    struct clime_task *tasks;    /* in the order in which they were offered */
    uint64_t next_lease, secret; /* of lease ids */
};

/* environments.c, for the handlers (HTTP workers): */

/* The oldest task that waits, leased now and described by write (under the lock); false when none came until then. */
bool clime_env_lease(struct clime_environments *v, int64_t until_us, const struct clime_http_request *rq,
                     void (*write)(const struct clime_environments *v, const struct clime_task *t,
                                   struct clime_buf *out),
                     struct clime_buf *out);
/* Hands the call to the task's owner and waits until it is done. CLIME_ERR_NOT_FOUND: no such lease (any more).
 * CLIME_ERR_INPUT: another call is under way. Otherwise the call's own error. */
enum clime_err clime_env_call(struct clime_environments *v, struct clime_str id, struct clime_env_call *call,
                              struct clime_error *e);
/* Takes *r over when it returns CLIME_OK. */
enum clime_err clime_env_result(struct clime_environments *v, struct clime_str id, struct clime_env_result *r,
                                struct clime_error *e);
enum clime_err clime_env_renew(struct clime_environments *v, struct clime_str id, struct clime_error *e);

/* turn.c: computes one turn of the task for the call and fills its reply or error. The owner's thread, without the
 * lock. */
void clime_env_turn(struct clime_environments *v, struct clime_task *t, struct clime_env_call *call,
                    clime_turn_fn *turn, void *arg);

/* commands.c: n copies of a shell command, started again when they end; CLIME_URL names the interface. */
struct clime_env_commands;
enum clime_err clime_env_commands_start(const char *command, int n, const char *url, const char *api_key,
                                        const char *run_dir, struct clime_env_commands **out, struct clime_error *e);
void clime_env_commands_stop(struct clime_env_commands *c); /* NULL is fine */

#endif
