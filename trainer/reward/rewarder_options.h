/* Reward options, for the rewarder and its judges. */
#ifndef CLIME_TRAINER_REWARD_REWARDER_OPTIONS_H
#define CLIME_TRAINER_REWARD_REWARDER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct clime_hook;

struct clime_rewarder_options { /* strings must stay valid */
    const char *type;           /* --rm-type; NULL = command or url if set, else from each request's metadata */
    const char *reward_key;     /* --reward-key or NULL */
    const char *command;        /* --rm-command or NULL */
    const char *url;            /* --rm-url or NULL */
    /* --custom-rm-path or NULL: type "custom". As in slime it overrides --rm-type and metadata for every sample, except
     * for a weighted sum that includes it. */
    struct clime_hook *library;
    int64_t timeout_us; /* --rm-timeout: per call, over all its tries; > 0 */
    bool in_order;      /* results in submission order */
    int batch;          /* maximum answers per command call, from those waiting; 0 or 1 = one */
    int n_workers;      /* 0 = 64 for a URL, else 2 */
    int max_pending;    /* submitted but not taken; 0 = 65536 */
};

/* The type of requests without one; NULL = none. */
const char *clime_rewarder_type(const struct clime_rewarder_options *o);

/* CLIME_ERR_INPUT: the type is unknown, or lacks its command, URL or library. Call before anything starts. *is_url (may
 * be NULL): a part of the type uses a URL. */
enum clime_err clime_rewarder_check(const struct clime_rewarder_options *o, bool *is_url, struct clime_error *e);

#endif
