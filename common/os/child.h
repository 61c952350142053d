/* Supervises a child process: starts it when due, reaps it when dead, restarts it after a pause.
 *
 * The child has its own process group: Ctrl-C in the terminal reaches only us, and its descendants are killed with it.
 * As descriptor CLIME_CHILD_FD it gets the read end of a pipe that only we can write: however we end, the pipe ends. A
 * program takes it as --parent-fd; a shell line can ignore it, as it is killed with its group. Keys in our environment
 * (CLIME_..._API_KEY) are not inherited: a child gets only those in `vars`.
 *
 * Nouns
 *   up            ready: after clime_child_is_up, or from the start when there is no limit for coming up.
 *   quick death   an end by itself before or soon after it was up. Many in a row are an error. The pause before the
 *                 next start grows with them, and with kills from outside before it was up.
 * One thread at a time, except clime_child_kill.
 */
#ifndef CLIME_COMMON_OS_CHILD_H
#define CLIME_COMMON_OS_CHILD_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

#define CLIME_CHILD_FD 3
#define CLIME_CHILD_NAME 32

enum clime_child_state {
    CLIME_CHILD_DOWN,     /* not running; restarts at restart_us */
    CLIME_CHILD_STARTING, /* running, not up yet */
    CLIME_CHILD_UP,
};

struct clime_child_options { /* copied */
    const char *name;        /* "server-0", in messages */
    const char *const *argv; /* NULL-terminated, argv[0] the program's path; NULL: line */
    const char *line;        /* for /bin/sh */
    const char *const *vars; /* "NAME=value", NULL-terminated: added to the environment; or NULL */
    const char *log_file;    /* gets stdout and stderr; NULL: stderr is ours */
    bool talk;               /* stdin and stdout are non-blocking pipes to us: to, from */
    bool once;               /* never restarted: its end is an error */
    int64_t up_limit_us;     /* from start to up; 0 = up when started, -1 = no limit */
    int64_t steady_us;       /* a death sooner than this after up counts as quick */
};

struct clime_child {
    char name[CLIME_CHILD_NAME];
    char **argv, **vars;
    char *log_file; /* NULL = none */
    bool talk, once;
    int64_t up_limit_us, steady_us;
    enum clime_child_state state;
    pid_t pid;                             /* 0 = not running */
    int to, from;                          /* our ends of its pipes; -1 = none */
    int64_t started_us, up_us, restart_us; /* clime_now_us scale */
    int n_quick_deaths;                    /* in a row */
    int n_early_kills;                     /* in a row: killed from outside before it was up */
    int n_starts;
    int last_status;       /* of its last end, from waitpid */
    int64_t next_word_us;  /* time of the next log line about waiting for it */
    pthread_mutex_t *lock; /* guards pid against killing another process */
};

void clime_child_init(struct clime_child *c, const struct clime_child_options *o);
void clime_child_free(struct clime_child *c); /* must be stopped; zeroed is fine */

/* Updates the child's state once, without waiting: reaps it when dead, starts it when due, logs long waits. Sets *died
 * (may be NULL) when it has just died. CLIME_ERR_UNAVAILABLE: too many quick deaths, or a `once` child ended;
 * CLIME_ERR_TIMEOUT: not up in time (and killed). The message holds the end of its log. Polling continues after an
 * error. */
enum clime_err clime_child_poll(struct clime_child *c, bool *died, struct clime_error *e);

/* Call when its pipes have closed: waits for its end, and kills it if it lives on. Errors as of poll. */
enum clime_err clime_child_finish(struct clime_child *c, struct clime_error *e);

void clime_child_is_up(struct clime_child *c); /* STARTING becomes UP */
void clime_child_kill(struct clime_child *c);  /* SIGKILLs its group; poll reaps it. Any thread */
void clime_child_stop(struct clime_child *c);  /* kills and reaps it; the next poll restarts it */

#endif
