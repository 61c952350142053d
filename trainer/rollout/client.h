/* What turns a request into a finished sample: threads behind two queues.
 *
 * A request is generation and then reward. The owner (rollout or eval, on the main thread) fills one, submits it, and
 * gets it back from clime_client_next with the sample COMPLETED, TRUNCATED or FAILED, or ABORTED after the owner set
 * the request's stop flag; everything comes back in the end: generation before the request's deadline, the reward
 * before its own. Between submit and next the request and its sample belong to the client.
 *
 * A sample that holds response tokens (aborted in an earlier rollout) is continued: prompt and tokens are the input,
 * what comes back is added. An aborted one keeps the tokens that it got; one that was sampled to its end is scored all
 * the same.
 *
 * With group_size the reward is asked for when all members of the group are generated. When one of them comes back
 * without an answer, or the rollout is stopped, those that waited for it come back ABORTED, one token short, so that
 * continuing them ends where they had ended.
 *
 * A try that breaks is repeated (asker.h): by the contract on numerics the result is the same.
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
    const struct clime_fleet *fleet; /* asked for the router's URL before every try */
    const char *api_key;             /* of the fleet, or NULL */
    const struct clime_tokenizer *tokenizer;
    int n_most; /* requests under way at a time; with environments also sessions, a thread each */
    int64_t reward_timeout_us;
    const char *rm_type, *rm_command, *rm_url; /* may be NULL */
    int rm_batch_size;                         /* answers that a command gets at a time */
    int rm_workers;                            /* 0 = as many as the type wants */
    const char *teacher_url;                   /* NULL = no request asks for it */
    int teacher_threads;
    int64_t teacher_timeout_us;
    const char *vocabulary;                  /* of the policy (clime_tokenizer_facts), which the teacher's must be */
    const struct clime_opt_list *allowed;    /* keys of the teacher that may differ ("teacher.vocabulary") */
    struct clime_hook *library;              /* --custom-rm-path or NULL */
    const char *device;                      /* kind of device of the servers, recorded with each sample; may be NULL */
    struct clime_environments *environments; /* who makes the samples; NULL = one call of /generate each */
};

enum clime_err clime_client_open(const struct clime_client_options *o, struct clime_client **out,
                                 struct clime_error *e);
/* Gives up what is in flight and joins the threads: after it no request is in anyone's hands but its owner's, and none
 * may be submitted. For a run that ends with an error; twice is fine. */
void clime_client_stop(struct clime_client *c);
void clime_client_close(struct clime_client *c); /* stop, and free; NULL is fine */

/* At most CLIME_REQUESTS_MAX requests may be submitted and not fetched. */
int64_t clime_client_gathering(struct clime_client *c); /* another number each time; by who submits */
void clime_client_submit(struct clime_client *c, struct clime_request *r);

/* How many are under way at a time, from now on; with environments never more than at the start. By who submits. */
void clime_client_limit(struct clime_client *c, int n_most);
int clime_client_most(const struct clime_client *c);

/* When any sample last went a step towards its reward or got it (clime_now_us scale). */
int64_t clime_client_moved_us(const struct clime_client *c);

/* Finished requests: waits until one is there or the deadline (clime_now_us scale); returns how many (0 to max). */
int clime_client_next(struct clime_client *c, struct clime_request **out, int max, int64_t deadline_us);

#endif
