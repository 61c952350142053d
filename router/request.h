/* What the router reads of a generation request: its cost in tokens and its session. Pure; any thread. */
#ifndef CLIME_ROUTER_REQUEST_H
#define CLIME_ROUTER_REQUEST_H

#include <stdint.h>

#include "common/str.h"

/* Tokens the request may occupy: prompt (ids counted exactly, text at 4 bytes a token) plus what it may generate
 * (max_new_tokens, max_tokens or max_completion_tokens; 128 when it does not say), times n. A body that is no JSON
 * costs its length / 4: the worker is the one to refuse it, with the better message. */
int64_t clime_request_cost(struct clime_str body);

#endif
