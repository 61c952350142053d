/* Who asks /generate: one thread that has all requests of a run under way at once.
 *
 * A request is tried until it has its tokens: a try that breaks (server gone, router gone, a status that
 * common/http/retry.h calls passing, an abort that nobody asked for, another weight version) is repeated with the same
 * seed and a new rid until the request's deadline. Any other answer of 4xx is final.
 *
 * Between ask and done the request and its sample are the asker's.
 */
#ifndef CLIME_TRAINER_ROLLOUT_ASKER_H
#define CLIME_TRAINER_ROLLOUT_ASKER_H

#include "text/tokenizer.h"
#include "trainer/sample/request.h"

struct clime_asker;
struct clime_fleet;

struct clime_asker_options {
    const struct clime_fleet *fleet; /* asked for the router's URL before every try */
    const char *api_key;             /* of the fleet, or NULL */
    const struct clime_tokenizer *tokenizer;
    int n_most; /* under way at a time; others wait for their turn */
};

enum clime_err clime_asker_open(const struct clime_asker_options *o, struct clime_asker **out, struct clime_error *e);

/* Any thread. done is called once, on the asker's thread: the sample is COMPLETED, TRUNCATED or FAILED, or ABORTED
 * after the request was stopped. CLIME_REQUESTS_MAX may be asked and not done. */
typedef void clime_asker_done_fn(void *arg, struct clime_request *r);
void clime_asker_ask(struct clime_asker *a, struct clime_request *r, clime_asker_done_fn *done, void *arg);

void clime_asker_limit(struct clime_asker *a, int n_most); /* any thread */

/* The sample lost its end (it was not to have one yet): tokens that a stop string or a character may have begun with go
 * too, so that who continues it finds them. Any thread. */
void clime_asker_cut(const struct clime_tokenizer *tok, struct clime_request *r);

/* stop: from now on everything comes back FAILED, or ABORTED, at once. Any thread. close stops, and frees when all that
 * was begun is done; what was not is its owner's again, as it was. Nothing may be asked while it runs; NULL is fine. */
void clime_asker_stop(struct clime_asker *a);
void clime_asker_close(struct clime_asker *a);

#endif
