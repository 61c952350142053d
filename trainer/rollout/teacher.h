/* On-policy distillation: another model's log-probabilities of what the policy sampled (--use-opd).
 *
 * The teacher is any endpoint that speaks /generate: it is sent a finished sample's ids with max_new_tokens 0 and
 * answers with the log-probabilities of its prompt. They become the sample's teacher_logp, are stored with it, and are
 * never asked for again: recovery and --replay need no teacher.
 *
 * A stage of the client's pipeline (client.c): requests whose samples are finished come in by
 * clime_teacher_submit from any thread, and leave through the queue `out`, scored or FAILED. Between the two they
 * belong to the teacher's threads.
 *
 * The ids must mean the same to both. Before the first sample, and again after each connection that broke, the teacher
 * is asked what it is; one that says another vocabulary, or another model than before, gets no sample. One that does
 * not say (it is no clime-server) is believed, with a warning.
 *
 * A try that breaks (no connection, a status that common/http/retry.h calls passing) is repeated until the sample's
 * deadline; any other 4xx and a reply that is not about the ids sent are final. A teacher that fails is a failed
 * sample, never an advantage of 0.
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
    int64_t timeout_us;                   /* for one sample, all tries together, from when a thread has it */
    const char *vocabulary;               /* NULL = any; else a teacher that says another one is refused, */
    const struct clime_opt_list *allowed; /* unless this has "teacher.vocabulary"; NULL = nothing */
    struct clime_queue *out;
};

/* What the teacher says of itself ("identity" of /server_info), each key behind "teacher."; nothing where it does not
 * say. CLIME_ERR_UNAVAILABLE and others: it does not answer. */
enum clime_err clime_teacher_ask(const char *url, struct clime_facts *out, struct clime_error *e);

/* CLIME_ERR_INPUT: it answers, and is of another vocabulary. */
enum clime_err clime_teacher_open(const struct clime_teacher_options *o, struct clime_teacher **out,
                                  struct clime_error *e);
void clime_teacher_submit(struct clime_teacher *t, struct clime_request *r);
void clime_teacher_close(struct clime_teacher *t); /* gives up what is in flight; NULL is fine */

/* ---- text, pure ---- */

void clime_teacher_body(const struct clime_sample *s, struct clime_buf *out);

/* Reads teacher_logp from a reply: the last n_response entries of input_token_logprobs, whose ids must be the
 * response's (endpoints differ in where they begin, and whether the first has a number). CLIME_ERR_INPUT where the
 * reply is something else; the sample is then as it was. */
enum clime_err clime_teacher_read(struct clime_sample *s, struct clime_str reply, struct clime_error *e);

#endif
