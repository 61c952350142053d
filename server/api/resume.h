/* Going on where an earlier reply of the same request ended: the member "resume" of /generate.
 *
 * It holds that reply as it came, whole or the last event of a cumulative stream; for several outputs a list of them by
 * index, null where there is none. Its tokens become the output's first ones, with their numbers, versions, seed and
 * request id, and are computed again as those of a preempted sequence are; so under the same weights the finished reply
 * is the one that would have come without the break, bit for bit (docs/numerics.md). Under others token_versions say
 * it.
 */
#ifndef CLIME_SERVER_API_RESUME_H
#define CLIME_SERVER_API_RESUME_H

#include "server/server.h"

/* Fills the job's outputs, which are made and not submitted, from the JSON in resume; those beyond a list's end begin
 * anew. An output whose tokens end it already is finished. CLIME_ERR_INPUT: not a reply of this request. */
enum clime_err clime_resume_read(const struct clime_server *s, struct clime_job *job, struct clime_str resume,
                                 struct clime_error *e);

#endif
