/* Client of /generate: one thread runs all requests of a run concurrently.
 *
 * A failed try (server or router gone, a transient status of common/http/retry.h, an unrequested abort, another weight
 * version) is repeated with the same seed and a new rid until the request's deadline. Any other 4xx is final.
 *
 * The asker owns the request and its sample between ask and done.
 */
#ifndef CLIME_TRAINER_ROLLOUT_ASKER_H
#define CLIME_TRAINER_ROLLOUT_ASKER_H

#include "text/tokenizer.h"
#include "trainer/sample/request.h"

struct clime_asker;
struct clime_fleet;

struct clime_asker_options {
    const struct clime_fleet *fleet; /* gives the router's URL before every try */
    const char *api_key;             /* of the fleet, or NULL */
    const struct clime_tokenizer *tokenizer;
    int n_most; /* maximum in flight; others are queued */
};

enum clime_err clime_asker_open(const struct clime_asker_options *o, struct clime_asker **out, struct clime_error *e);

/* Any thread. done is called once, on the asker's thread, with the sample COMPLETED, TRUNCATED or FAILED, or ABORTED if
 * the request was stopped. At most CLIME_REQUESTS_MAX may be pending. */
typedef void clime_asker_done_fn(void *arg, struct clime_request *r);
void clime_asker_ask(struct clime_asker *a, struct clime_request *r, clime_asker_done_fn *done, void *arg);

void clime_asker_limit(struct clime_asker *a, int n_most); /* any thread */

/* Removes trailing tokens that may begin a stop string or a character from a sample whose end was undone, so that
 * continuing it generates them again. Any thread. */
void clime_asker_cut(const struct clime_tokenizer *tok, struct clime_request *r);

/* stop: from now on every request returns FAILED or ABORTED at once. Any thread. close stops, waits for started
 * requests and frees; requests not started return to their owner unchanged. Do not ask during close; NULL is fine. */
void clime_asker_stop(struct clime_asker *a);
void clime_asker_close(struct clime_asker *a);

#endif
