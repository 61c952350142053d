/* A child process of the fleet: clime-router or clime-server on an ephemeral port, with a thread that polls /health.
 *
 * It is up at the first 200. If it then stops answering for any reason (stopped, swapping, hung device), it is killed
 * and restarted: requests waiting for it fail at once. Fleet's thread.
 */
#ifndef CLIME_TRAINER_FLEET_PROGRAM_H
#define CLIME_TRAINER_FLEET_PROGRAM_H

#include "common/os/child.h"
#include "common/thread/periodic.h"

#define CLIME_PROGRAM_URL 128

struct clime_program_options { /* copied */
    const char *name;          /* "router", "server-0" */
    const char *path;          /* of the binary */
    const char *run_dir;       /* must contain ports/ and logs/ */
    const char *const *args;   /* [n_args] without --port and the like */
    int n_args;
    const char *const *vars; /* environment, as in common/os/child.h */
    int64_t start_limit_us, silence_us,
        ask_every_us; /* limit to come up; limit without an answer afterwards; polling interval */
};

struct clime_program {
    struct clime_child child;
    char *port_file;
    char url[CLIME_PROGRAM_URL]; /* "" unless up */
    struct clime_health *health; /* shared with the health thread */
};

enum clime_err clime_program_init(struct clime_program *p, const struct clime_program_options *o,
                                  struct clime_error *e);
void clime_program_free(struct clime_program *p); /* stops it; zero is fine */

/* As clime_child_poll; sets url. Does not wait. */
enum clime_err clime_program_poll(struct clime_program *p, bool *died, struct clime_error *e);

static inline bool clime_program_is_up(const struct clime_program *p) {
    return p->child.state == CLIME_CHILD_UP;
}

#endif
