/* A line in the log for each generated output, on demand: --log-requests, or /configure_logging while the server runs
 * (SGLang's names). HTTP workers.
 */
#ifndef CLIME_SERVER_API_REQUEST_LOG_H
#define CLIME_SERVER_API_REQUEST_LOG_H

#include "server/server.h"

/* What a line holds, each level all of those before it. */
enum clime_request_log {
    CLIME_LOG_NO_REQUESTS = -1,
    CLIME_LOG_META,   /* id, path, counts, times, how it ended */
    CLIME_LOG_PARAMS, /* sampling parameters */
    CLIME_LOG_TEXT,   /* the beginning of the prompt's ids and of the text */
    CLIME_LOG_ALL     /* all of them, and the ids of the output */
};

/* A closed job. */
void clime_request_log(const struct clime_server *s, const struct clime_http_request *rq, const struct clime_job *j);

#endif
