/* What the router reads of a request to choose a worker for it. Pure; any thread. */
#ifndef CLIME_ROUTER_POLICY_REQUEST_H
#define CLIME_ROUTER_POLICY_REQUEST_H

#include <stdint.h>

#include "common/arena.h"
#include "common/str.h"

/* Marks in a prompt, by which prompts with the same beginning are known: at the ends of pages of 64 tokens as in a
 * server's KV, or of 256 bytes of a text or a conversation, which are about as many. The first twenty pages have one
 * each, further ones lie a tenth of the way apart, so that this many reach over 80,000 tokens. */
#define CLIME_ROUTE_PAGES 64
#define CLIME_ROUTE_PAGE_TOKENS 64

/* The page after `page` (counted from 1; 0 = the start) that has a mark. */
static inline int64_t clime_route_next_page(int64_t page) {
    return page + (page < 20 ? 1 : page / 10);
}

/* Slices are of the request's headers and body, or of the arena it was read with. */
struct clime_route_request {
    struct clime_str session; /* requests of one session prefer one worker; empty = none */
    struct clime_str label;   /* "name=value" that its worker must have; empty = any will do */
    struct clime_str target;  /* the one worker that may have it: its URL, or its place among all; empty = any */
    struct clime_str model;   /* as the client names it; empty = it does not */
    struct clime_str rids;    /* by which it is aborted, as JSON: a text, or a list of one for each prompt */
    bool stream, single;      /* its answer is to be one of events; and is of one prompt alone, once */
    int64_t cost;             /* tokens that it may occupy, >= 1 */
    int64_t output;           /* of these, what it may generate */
    int64_t prompt;           /* tokens of its prompts, each counted once */
    int n_pages;              /* marks, of the first prompt of a batch */
    uint64_t pages[CLIME_ROUTE_PAGES]; /* each a hash of the prompt from its start to the mark, and the model */
};

/* Reads a body. session: of a header or the path; without one the body's session_id, or session_params.session_id,
 * counts. Cost: for each prompt its tokens (ids counted exactly, text at 4 bytes a token) and what it may generate
 * (max_new_tokens, max_tokens or max_completion_tokens; 128 when it does not say), times n; in a batch each prompt has
 * its own sampling parameters, or all have the same. A body that is no JSON costs its length / 4: the worker is the one
 * to refuse it, with the better message. */
void clime_route_request_read(struct clime_route_request *rq, struct clime_str session, struct clime_str body,
                              struct clime_arena *arena);

#endif
