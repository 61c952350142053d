/* A program of the fleet that the trainer starts: clime-router or clime-server, on an ephemeral port, with a thread
 * that asks it for /health.
 *
 * It is up when it first answers 200. One that is up and then says nothing any more, whatever the reason (it is
 * stopped, it swaps, a device hangs), is killed, and so started again: what waits for its answers gets an error at
 * once. The fleet's thread.
 */
#ifndef CLIME_TRAINER_FLEET_PROGRAM_H
#define CLIME_TRAINER_FLEET_PROGRAM_H

#include "common/os/child.h"
#include "common/thread/periodic.h"

#define CLIME_PROGRAM_URL 128

struct clime_program_options { /* all of it is copied */
    const char *name;          /* "router", "server-0" */
    const char *path;          /* of the binary */
    const char *run_dir;       /* run_dir/ports and run_dir/logs exist */
    const char *const *args;   /* [n_args] without --port and the like */
    int n_args;
    const char *const *vars; /* as of a child */
    int64_t start_limit_us, silence_us,
        ask_every_us; /* until it is up; without an answer afterwards; between questions */
};

struct clime_program {
    struct clime_child child;
    char *port_file;
    char url[CLIME_PROGRAM_URL]; /* "" unless up */
    struct clime_health *health; /* what the asking thread shares */
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
