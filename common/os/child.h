/* A program that we start and watch: started when due, reaped when dead, started again after a pause.
 *
 * It runs in a process group of its own: Ctrl-C in the terminal reaches us alone, and what it started is killed with
 * it. It gets the read end of a pipe that only we can write to, as descriptor CLIME_CHILD_FD: however we end, the pipe
 * ends. A program takes that as --parent-fd; a shell's line needs to know nothing, for it is killed with its group.
 * Keys in our environment (CLIME_..._API_KEY) are not passed on: a child has those that it is given.
 *
 * Nouns
 *   up            it does its work: from clime_child_is_up on; without a limit for coming up, from its start.
 *   quick death   an end by itself before it was up, or soon after. Many in a row are an error: a program that dies at
 *                 every start. The pause before the next start grows with them, and with kills from outside that come
 *                 before it was up.
 * One thread at a time but for clime_child_kill.
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
    CLIME_CHILD_DOWN,     /* not running; starts again when restart_us has come */
    CLIME_CHILD_STARTING, /* running, not up yet */
    CLIME_CHILD_UP,
};

struct clime_child_options { /* all of it is copied */
    const char *name;        /* "server-0", in messages */
    const char *const *argv; /* NULL-terminated, argv[0] the program's path; NULL: line */
    const char *line;        /* of /bin/sh */
    const char *const *vars; /* "NAME=value", NULL-terminated: put into the environment; or NULL */
    const char *log_file;    /* gets output and errors; NULL: its errors go where ours go */
    bool talk;               /* standard input and output are pipes to us, non-blocking: to, from */
    bool once;               /* it is never started again: its end is an error */
    int64_t up_limit_us;     /* from start to up; 0 = up when started, -1 = no limit */
    int64_t steady_us;       /* an end sooner than this after it was up is still quick */
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
    int last_status;       /* of its last end, as waitpid has it */
    int64_t next_word_us;  /* when the log says again that it is waited for */
    pthread_mutex_t *lock; /* of pid, against a kill of another's */
};

void clime_child_init(struct clime_child *c, const struct clime_child_options *o);
void clime_child_free(struct clime_child *c); /* stopped; zero is fine */

/* Looks at the child once and moves its state: reaps it when dead, starts it when due, says from time to time that it
 * is waited for. Sets *died (may be NULL) when it has just died. Does not wait. CLIME_ERR_UNAVAILABLE when it died too
 * often too quickly or was to run once, CLIME_ERR_TIMEOUT when it was not up in time (and is killed); the message holds
 * the end of its log. After an error it goes on as before when polled again. */
enum clime_err clime_child_poll(struct clime_child *c, bool *died, struct clime_error *e);

/* Its end is waited for, after one that only its pipes have told of; where it lives on it is killed. Errors as of poll.
 */
enum clime_err clime_child_finish(struct clime_child *c, struct clime_error *e);

void clime_child_is_up(struct clime_child *c); /* STARTING becomes UP */
void clime_child_kill(struct clime_child *c);  /* SIGKILL to its group; poll reaps it. Any thread */
void clime_child_stop(struct clime_child *c);  /* the same, and reaped here; the next poll starts it */

#endif
