/* Request log: a line for each generated output, with --log-requests or /configure_logging at run time (SGLang's
 * names). HTTP workers.
 */
#ifndef CLIME_SERVER_API_REQUEST_LOG_H
#define CLIME_SERVER_API_REQUEST_LOG_H

#include "server/server.h"

/* A line's content; each level includes those before it. */
enum clime_request_log {
    CLIME_LOG_NO_REQUESTS = -1,
    CLIME_LOG_META,   /* id, path, counts, times, finish reason */
    CLIME_LOG_PARAMS, /* sampling parameters */
    CLIME_LOG_TEXT,   /* the beginning of the prompt's ids and of the text */
    CLIME_LOG_ALL     /* all prompt ids and text, and the output ids */
};

/* A closed job. */
void clime_request_log(const struct clime_server *s, const struct clime_http_request *rq, const struct clime_job *j);

#endif
