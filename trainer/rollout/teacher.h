/* On-policy distillation: another model's log-probabilities of what the policy sampled (--use-opd).
 *
 * The teacher is any /generate endpoint: it gets a finished sample's ids with max_new_tokens 0 and returns the
 * log-probabilities of its prompt. They are stored as the sample's teacher_logp, so recovery and --replay need no
 * teacher.
 *
 * A stage of the client's pipeline (client.c): requests with finished samples enter by clime_teacher_submit from any
 * thread and leave through the queue `out`, scored or FAILED. In between the teacher's threads own them.
 *
 * Both models must use the same vocabulary. The teacher's identity is queried before the first sample and after each
 * broken connection; if it reports another vocabulary, or another model than before, it gets no sample. One that
 * reports nothing (not a clime-server) is trusted with a warning.
 *
 * A failed try (no connection, a transient status of common/http/retry.h) is repeated until the sample's deadline; any
 * other 4xx and a reply about other ids are final. A teacher failure fails the sample and never becomes an advantage of
 * 0.
 */
#ifndef CLIME_TRAINER_ROLLOUT_TEACHER_H
#define CLIME_TRAINER_ROLLOUT_TEACHER_H

#include "common/buf.h"
#include "common/json/facts.h"
#include "common/thread/queue.h"
#include "trainer/sample/request.h"

struct clime_teacher;

struct clime_teacher_options {
    const char *url;                      /* of the server, or of its /generate */
    int n_threads;                        /* requests in flight */
    int64_t timeout_us;                   /* per sample over all tries, from when a thread starts it */
    const char *vocabulary;               /* NULL = any; else reject a teacher that reports another, */
    const struct clime_opt_list *allowed; /* unless this has "teacher.vocabulary"; NULL = empty */
    struct clime_queue *out;
};

/* The teacher's "identity" of /server_info, each key prefixed with "teacher."; empty if it reports none.
 * CLIME_ERR_UNAVAILABLE and others: no answer. */
enum clime_err clime_teacher_ask(const char *url, struct clime_facts *out, struct clime_error *e);

/* CLIME_ERR_INPUT: it answers and has another vocabulary. */
enum clime_err clime_teacher_open(const struct clime_teacher_options *o, struct clime_teacher **out,
                                  struct clime_error *e);
void clime_teacher_submit(struct clime_teacher *t, struct clime_request *r);
void clime_teacher_close(struct clime_teacher *t); /* cancels everything in flight; NULL is fine */

/* ---- text, pure ---- */

void clime_teacher_body(const struct clime_sample *s, struct clime_buf *out);

/* Reads teacher_logp from a reply: the last n_response entries of input_token_logprobs, whose ids must be the
 * response's (endpoints differ in the first position and whether it has a number). CLIME_ERR_INPUT for any other reply;
 * the sample is then unchanged. */
enum clime_err clime_teacher_read(struct clime_sample *s, struct clime_str reply, struct clime_error *e);

#endif
