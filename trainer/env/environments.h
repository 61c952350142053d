/* Environments: programs in any language that act on tasks with the policy, over the trainer's HTTP interface
 * (openapi/trainer.yaml). Or a function of a shared library does the same in-process, one thread per task and no HTTP
 * (trainer/plugin/plugin.h, `generate`).
 *
 * Nouns
 *   task     one sample of the run for an environment to make: it leases the task, talks to the policy through the
 *            task's session, and posts a reward (or an error).
 *   lease    a task's assignment to an environment. Without a call of the session for the lease time it expires: the
 *            task restarts with another environment.
 *   session  the turns of a task, token-exact (trainer/env/session.h).
 *
 * Threads: a client thread (trainer/rollout/client.h) calls run and owns the task and its session until it returns;
 * HTTP workers and hook threads only pass it turns and wait. One mutex guards the table of tasks; no turn is computed
 * under it. */
#ifndef CLIME_TRAINER_ENV_ENVIRONMENTS_H
#define CLIME_TRAINER_ENV_ENVIRONMENTS_H

#include "common/http/server.h"
#include "text/chat/chat_template.h"
#include "trainer/reward/reward.h"
#include "trainer/sample/request.h"

struct clime_hook;

struct clime_environments_options {
    struct clime_hook *hook; /* acts instead of programs over HTTP; borrowed; NULL = none */
    const char *host;
    int port;                          /* 0 = any */
    const char *api_key;               /* NULL = none */
    const struct clime_tokenizer *tok; /* borrowed */
    const char *chat_template_kwargs;  /* JSON object or NULL; borrowed */
    int64_t lease_us, heartbeat_us;    /* a stream idle for heartbeat_us sends a comment; 0 = never */
    int max_turns, max_attempts;       /* turns of a session, 0 = no limit; leases before a task fails */
    const char *command;               /* program to start; NULL: environments connect by themselves */
    int n_commands;                    /* copies of it */
    int n_tasks;                       /* maximum tasks at a time: sizes the number of connections */
    const char *run_dir;               /* writes ports/environments and logs/ (output of the copies) */
};

struct clime_environments;

/* CLIME_ERR_INPUT: the port is in use or the template is broken. */
enum clime_err clime_environments_open(const struct clime_environments_options *o, struct clime_environments **out,
                                       struct clime_error *e);
void clime_environments_close(struct clime_environments *v); /* no run may be in progress; NULL is fine */

/* Callbacks of the client thread while it runs a task. */
typedef void clime_turn_fn(void *arg, struct clime_request *turn);
struct clime_task_owner {
    clime_turn_fn *turn;         /* generates one turn: its sample has the prompt and is filled like any other */
    bool (*stopping)(void *arg); /* asked a few times a second */
    /* sets the environment's reward on a part of r->sample; false: r->sample has failed */
    bool (*score)(void *arg, struct clime_request *r, struct clime_sample *part, struct clime_reward *given);
    void *arg;
};

/* Offers the request as a task and serves its session. r->sample returns COMPLETED or TRUNCATED (the tokens of its last
 * turn and all before it; or several such paths, as its parts), FAILED, or ABORTED when r was stopped. Parts that the
 * environment did not reward have no reward. Called by client threads. */
void clime_environments_run(struct clime_environments *v, struct clime_request *r,
                            const struct clime_task_owner *owner);

/* Routes, for --print-routes and tests. */
extern const struct clime_http_route clime_environment_routes[];

#endif
