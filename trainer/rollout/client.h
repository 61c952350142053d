/* Rollout client: turns requests into finished samples, with threads behind two queues.
 *
 * A request is generation, then reward. The owner (rollout or eval, on the main thread) fills and submits it, and gets
 * it back from clime_client_next with the sample COMPLETED, TRUNCATED or FAILED, or ABORTED if the owner set the
 * request's stop flag. Every request returns: generation ends by the request's deadline, the reward by its own. The
 * client owns the request and its sample between submit and next.
 *
 * A sample with response tokens (aborted in an earlier rollout) is continued: prompt and tokens are the input, new
 * tokens are appended. An aborted sample keeps its tokens; if it was sampled to its end it is still scored.
 *
 * With group_size the reward is requested once all members of the group are generated. If a member fails or the rollout
 * is stopped, the waiting members return ABORTED, one token short, so that continuing them ends at the same point.
 *
 * Failed tries are repeated (asker.h); by the contract on numerics the result is the same.
 */
#ifndef CLIME_TRAINER_ROLLOUT_CLIENT_H
#define CLIME_TRAINER_ROLLOUT_CLIENT_H

#include "text/tokenizer.h"
#include "trainer/sample/request.h"

struct clime_client;
struct clime_environments;
struct clime_fleet;
struct clime_hook;

struct clime_client_options {
    const struct clime_fleet *fleet; /* gives the router's URL before every try */
    const char *api_key;             /* of the fleet, or NULL */
    const struct clime_tokenizer *tokenizer;
    int n_most; /* maximum requests in flight; with environments also sessions, one thread each */
    int64_t reward_timeout_us;
    const char *rm_type, *rm_command, *rm_url; /* may be NULL */
    int rm_batch_size;                         /* answers per call of the command */
    int rm_workers;                            /* 0 = the type's default */
    const char *teacher_url;                   /* NULL = not used */
    int teacher_threads;
    int64_t teacher_timeout_us;
    const char *vocabulary;                  /* the policy's (clime_tokenizer_facts), which the teacher must match */
    const struct clime_opt_list *allowed;    /* teacher keys that may differ ("teacher.vocabulary") */
    struct clime_hook *library;              /* --custom-rm-path or NULL */
    const char *device;                      /* the servers' kind of device, recorded with each sample; may be NULL */
    struct clime_environments *environments; /* make the samples; NULL = one /generate call each */
};

enum clime_err clime_client_open(const struct clime_client_options *o, struct clime_client **out,
                                 struct clime_error *e);
/* Cancels everything in flight and joins the threads. All requests are the owner's again, and none may be submitted.
 * For a run that ends with an error; may be called twice. */
void clime_client_stop(struct clime_client *c);
void clime_client_close(struct clime_client *c); /* stop, and free; NULL is fine */

/* At most CLIME_REQUESTS_MAX requests may be pending. */
int64_t clime_client_gathering(struct clime_client *c); /* a new number each time; submitter's thread */
void clime_client_submit(struct clime_client *c, struct clime_request *r);

/* Sets the maximum in flight; with environments never above the initial one. Submitter's thread. */
void clime_client_limit(struct clime_client *c, int n_most);
int clime_client_most(const struct clime_client *c);

/* Time of the last progress of any sample towards its reward (clime_now_us scale). */
int64_t clime_client_moved_us(const struct clime_client *c);

/* Returns up to max finished requests; waits for the first until the deadline (clime_now_us scale), then returns 0. */
int clime_client_next(struct clime_client *c, struct clime_request **out, int max, int64_t deadline_us);

#endif
