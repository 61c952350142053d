/* Lists of token ids in requests. Pure; any thread. */
#ifndef CLIME_SERVER_API_ID_LIST_H
#define CLIME_SERVER_API_ID_LIST_H

#include "common/json/scan.h"
#include "server/job/job.h"
#include "text/ids.h"

/* Reads a JSON array of ids into the scanner's arena; false (with the scanner's error) when it is not one. */
bool clime_id_list_read(struct clime_json *j, struct clime_ids *out);

/* The same, or null, into logp->ids: ids to report log-probabilities of at every position. */
bool clime_id_list_chosen(struct clime_json *j, struct clime_logp_options *logp);

#endif
