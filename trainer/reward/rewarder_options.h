/* Where rewards come from: for the rewarder and its judges. */
#ifndef CLIME_TRAINER_REWARD_REWARDER_OPTIONS_H
#define CLIME_TRAINER_REWARD_REWARDER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct clime_hook;

struct clime_rewarder_options { /* strings must stay valid */
    const char *type;       /* --rm-type; NULL = command or url if one is given, else each request's metadata says */
    const char *reward_key; /* --reward-key or NULL */
    const char *command;    /* --rm-command or NULL */
    const char *url;        /* --rm-url or NULL */
    /* --custom-rm-path or NULL: type "custom". As in slime it is the type of every sample, whatever --rm-type and
     * metadata say; a weighted sum that has it as a part is the exception. */
    struct clime_hook *library;
    int64_t timeout_us; /* --rm-timeout: for one call, all its tries together; > 0 */
    bool in_order;      /* results come in the order of submission */
    int batch;          /* answers that a command gets at a time, of those that wait; 0 or 1 = one */
    int n_workers;      /* 0 = 64 for a URL, else 2 */
    int max_pending;    /* submitted and not taken; 0 = 65536 */
};

/* The type of requests that name none; NULL = there is no such type. */
const char *clime_rewarder_type(const struct clime_rewarder_options *o);

/* CLIME_ERR_INPUT: the type is unknown, or has no command, URL or library. Before anything is started.
 * *is_url: some part of the type asks a URL; NULL = nobody wants to know. */
enum clime_err clime_rewarder_check(const struct clime_rewarder_options *o, bool *is_url, struct clime_error *e);

#endif
