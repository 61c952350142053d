/* A program that the trainer starts and watches: clime-router or clime-server, on an ephemeral port.
 *
 * The child gets the read end of a pipe that only the trainer can write to (--parent-fd): however the trainer ends, the
 * child sees the end of the pipe and leaves. Its port comes through a file, its output goes to a log file.
 * Main thread.
 */
#ifndef CLIME_TRAINER_FLEET_CHILD_H
#define CLIME_TRAINER_FLEET_CHILD_H

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"
#include "common/http/client.h"

#define CLIME_CHILD_URL 128

enum clime_child_state {
    CLIME_CHILD_DOWN,     /* not running; starts again when restart_us has come */
    CLIME_CHILD_STARTING, /* running, does not answer yet */
    CLIME_CHILD_UP,       /* answers /health */
};

struct clime_child {
    char name[32]; /* "router", "server-0" */
    char *program; /* path of the binary, owned */
    char **args;   /* [n_args] without --port and the like, owned */
    int n_args;
    char *port_file, *log_file; /* owned */
    int parent_fd;              /* read end of the pipe, borrowed */
    enum clime_child_state state;
    pid_t pid;                      /* 0 = not running */
    char url[CLIME_CHILD_URL];      /* valid when UP */
    int64_t started_us, restart_us; /* clime_now_us scale */
    int n_quick_deaths;             /* in a row: it died before it was up for QUICK_DEATH_US */
    int n_starts;
};

/* run_dir/ports and run_dir/logs exist. args are copied. */
void clime_child_init(struct clime_child *c, const char *name, const char *program, const char *run_dir, int parent_fd,
                      const char *const *args, int n_args);
void clime_child_free(struct clime_child *c);

/* Looks at the child once and moves its state: reaps it when dead, starts it when due, asks /health when starting.
 * Sets *died when it has just died. Never waits long. CLIME_ERR_UNAVAILABLE when it died or hung at its start too often
 * in a row; the message holds the end of its log. */
enum clime_err clime_child_poll(struct clime_child *c, struct clime_http_client *http, bool *died,
                                struct clime_error *e);

void clime_child_kill(struct clime_child *c); /* SIGKILL; poll reaps and restarts it */
void clime_child_stop(struct clime_child *c); /* SIGKILL, and reaped here */

#endif
