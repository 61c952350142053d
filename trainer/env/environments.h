/* Environments: programs in any language that act on tasks with the policy, over the trainer's HTTP interface
 * (openapi/trainer.yaml); or a function of a shared library that does the same within the process
 * (trainer/plugin/plugin.h, `generate`), a thread for each task, and then there is no HTTP.
 *
 * Nouns
 *   task     one sample of the run that an environment is to make: it leases it, talks to the policy through the
 *            task's session, and posts a reward (or an error).
 *   lease    a task in an environment's hands, for as long as it is heard of: without a call of the session for the
 *            lease time the task is given to another, from its beginning, and the old lease is void.
 *   session  the turns of a task, token-exact (trainer/env/session.h).
 *
 * Threads: a client thread (trainer/rollout/client.h) calls run and owns the task and its session until it returns;
 * HTTP workers and a hook's threads only hand it turns and wait. One mutex guards the table of tasks; no turn is
 * computed under it.
 */
#ifndef CLIME_TRAINER_ENV_ENVIRONMENTS_H
#define CLIME_TRAINER_ENV_ENVIRONMENTS_H

#include "common/http/server.h"
#include "text/chat/chat_template.h"
#include "trainer/reward/reward.h"
#include "trainer/sample/request.h"

struct clime_hook;

struct clime_environments_options {
    struct clime_hook *hook; /* who acts instead of programs over HTTP; borrowed; NULL = none */
    const char *host;
    int port;                          /* 0 = any */
    const char *api_key;               /* NULL = none */
    const struct clime_tokenizer *tok; /* borrowed */
    const char *chat_template_kwargs;  /* JSON object or NULL; borrowed */
    int64_t lease_us, heartbeat_us;    /* a stream that is silent for so long says that it lives; 0 = never */
    int max_turns, max_attempts;       /* turns of a session, 0 = no limit; leases of a task before it fails */
    const char *command;               /* program to start, or NULL: environments come by themselves */
    int n_commands;                    /* copies of it */
    int n_tasks;                       /* that may be offered at a time: how many connections to be ready for */
    const char *run_dir;               /* ports/environments gets the port; logs/ the output of the copies */
};

struct clime_environments;

/* CLIME_ERR_INPUT: the port is taken or the template is broken. */
enum clime_err clime_environments_open(const struct clime_environments_options *o, struct clime_environments **out,
                                       struct clime_error *e);
void clime_environments_close(struct clime_environments *v); /* no run may be under way; NULL is fine */

/* What a client thread lends while it runs a task. */
typedef void clime_turn_fn(void *arg, struct clime_request *turn);
struct clime_task_owner {
    clime_turn_fn *turn;         /* generates one turn: its sample holds the prompt, and is filled like any other */
    bool (*stopping)(void *arg); /* asked a few times a second */
    /* gives a part of r->sample the reward that the environment gave; false: r->sample has failed */
    bool (*score)(void *arg, struct clime_request *r, struct clime_sample *part, struct clime_reward *given);
    void *arg;
};

/* Offers the request as a task and serves its session: r->sample comes back COMPLETED or TRUNCATED (the tokens of its
 * last turn and all before it; or several such paths, as its parts), FAILED, or ABORTED when r was stopped. Parts that
 * the environment gave no reward have none. Called by client threads. */
void clime_environments_run(struct clime_environments *v, struct clime_request *r,
                            const struct clime_task_owner *owner);

/* The routes, for --print-routes and the tests. */
extern const struct clime_http_route clime_environment_routes[];

#endif
