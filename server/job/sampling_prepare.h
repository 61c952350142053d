/* Prepares sampling parameters: compiles stop_regex and tokenizes bad_words. On a text thread, once per object, before
 * its job is submitted.
 */
#ifndef CLIME_SERVER_JOB_SAMPLING_PREPARE_H
#define CLIME_SERVER_JOB_SAMPLING_PREPARE_H

#include "server/job/sampling_params.h"
#include "text/tokenizer.h"

/* True when clime_sampling_prepare has work to do. */
bool clime_sampling_unprepared(const struct clime_sampling_params *p);

/* Idempotent. CLIME_ERR_INPUT names the field. */
enum clime_err clime_sampling_prepare(struct clime_sampling_params *p, const struct clime_tokenizer *t,
                                      struct clime_tok_scratch *scratch, struct clime_error *e);
void clime_sampling_release(struct clime_sampling_params *p); /* frees prepare's results; fine without and twice */

#endif
