/* Resumes an earlier reply of the same request: the member "resume" of /generate.
 *
 * It is that reply verbatim, whole or the last event of a cumulative stream; for several outputs a list by index, null
 * for none. Its tokens become the output's first ones, with their log-probabilities, versions, seed and request id, and
 * are recomputed as for a preempted sequence. Under the same weights the finished reply equals the uninterrupted one,
 * bit for bit (docs/numerics.md); under others token_versions show the change.
 */
#ifndef CLIME_SERVER_API_RESUME_H
#define CLIME_SERVER_API_RESUME_H

#include "server/server.h"

/* Fills the job's outputs, made but not submitted, from the JSON in resume; outputs beyond the list's end start fresh.
 * An output whose tokens already end it is finished. CLIME_ERR_INPUT: not a reply of this request. */
enum clime_err clime_resume_read(const struct clime_server *s, struct clime_job *job, struct clime_str resume,
                                 struct clime_error *e);

#endif
