/* Routing fields of a request: what the router reads to choose a worker. Pure; any thread. */
#ifndef CLIME_ROUTER_POLICY_REQUEST_H
#define CLIME_ROUTER_POLICY_REQUEST_H

#include <stdint.h>

#include "common/arena.h"
#include "common/str.h"

/* Prompts with the same beginning are recognised by hashes at marks: at the ends of 64-token pages as in a server's KV
 * cache, or of 256 bytes of a text or conversation (about as many tokens). The first twenty pages have one mark each,
 * later marks are a tenth of their position apart, so 64 marks reach over 80,000 tokens. */
#define CLIME_ROUTE_PAGES 64
#define CLIME_ROUTE_PAGE_TOKENS 64

/* The next page after `page` (from 1; 0 = the start) with a mark. */
static inline int64_t clime_route_next_page(int64_t page) {
    return page + (page < 20 ? 1 : page / 10);
}

/* Slices point into the request's headers, its body, or the arena. */
struct clime_route_request {
    struct clime_str session;          /* requests of a session prefer one worker; empty = none */
    struct clime_str label;            /* "name=value" that the worker must have; empty = any */
    struct clime_str target;           /* the only worker allowed: its URL or its index; empty = any */
    struct clime_str model;            /* as named by the client; empty = not named */
    struct clime_str rids;             /* ids that abort it, as JSON: a string, or a list with one per prompt */
    bool stream, single;               /* the answer is a stream; of a single prompt, sampled once */
    int64_t cost;                      /* tokens it may occupy, >= 1 */
    int64_t output;                    /* of these, tokens it may generate */
    int64_t prompt;                    /* prompt tokens, each prompt counted once */
    int n_pages;                       /* marks of a batch's first prompt */
    uint64_t pages[CLIME_ROUTE_PAGES]; /* hash of the model and the prompt up to the mark */
};

/* Reads a body. session: from a header or the path; if empty, the body's session_id or session_params.session_id. Cost
 * per prompt: its tokens (ids exactly, text at 4 bytes a token) plus what it may generate (max_new_tokens, max_tokens
 * or max_completion_tokens; default 128), times n. A batch has sampling parameters per prompt, or one set for all. A
 * body that is not JSON costs its length / 4: the worker refuses it with the better message. */
void clime_route_request_read(struct clime_route_request *rq, struct clime_str session, struct clime_str body,
                              struct clime_arena *arena);

#endif
