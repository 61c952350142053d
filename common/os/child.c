/* Supervision of one child process (see child.h, also for threads).
 *
 * Owns the process. Invariant: a running child is either reaped here or ends with us; none is left over. A group is
 * killed only before its leader is reaped, so its number cannot have been reused.
 *
 * posix_spawn instead of fork: our programs have threads and large heaps, and a child must inherit no descriptor but
 * its own (a leaked socket would keep a dead connection open).
 */
#include "common/os/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/files.h"

#define MAX_QUICK_DEATHS 5
#define FIRST_PAUSE_US 50000
#define MAX_PAUSE_US 10000000
#define WORD_EVERY_US 10000000 /* or a sixtieth of the limit */
#define LOG_TAIL 300

extern char **environ;

/* Wrapper of a shell line. Restores the soft limit of open files, as ours is higher than most programs expect. A
 * detached process waits for the pipe's end, then kills the group. */
static const char WRAPPER[] = "ulimit -S -n \"$1\" 2>/dev/null\n"
                              "( ( read -r _; kill -KILL 0 ) <&3 >/dev/null 2>&1 & )\n"
                              "exec /bin/sh -c \"$2\" 3<&-";

static pthread_mutex_t pipe_lock = PTHREAD_MUTEX_INITIALIZER;
static int parent_pipe[2] = {-1, -1}; /* both ends stay open until we end */

/* Returns errno. */
static int open_pipe(void) {
    pthread_mutex_lock(&pipe_lock);
    int why = parent_pipe[0] < 0 && pipe2(parent_pipe, O_CLOEXEC) ? errno : 0;
    pthread_mutex_unlock(&pipe_lock);
    return why;
}

/* ---- set-up ---- */

static char **copy_list(const char *const *list) {
    size_t n = 0;
    while (list && list[n]) n++;
    char **out = xcalloc(n + 1, sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = xstrdup(list[i]);
    return out;
}

static void free_list(char **list) {
    for (size_t i = 0; list && list[i]; i++) free(list[i]);
    free(list);
}

void clime_child_init(struct clime_child *c, const struct clime_child_options *o) {
    char files[24];
    snprintf(files, sizeof files, "%lld", (long long)clime_files_given());
    const char *const shell[] = {"/bin/sh", "-c", WRAPPER, "sh", files, o->line, NULL};
    CHECK(!o->argv != !o->line);
    *c = (struct clime_child){.argv = copy_list(o->line ? shell : o->argv),
                              .vars = copy_list(o->vars),
                              .log_file = o->log_file ? xstrdup(o->log_file) : NULL,
                              .talk = o->talk,
                              .once = o->once,
                              .up_limit_us = o->up_limit_us,
                              .steady_us = o->steady_us,
                              .to = -1,
                              .from = -1,
                              .lock = xmalloc(sizeof *c->lock)};
    snprintf(c->name, sizeof c->name, "%s", o->name);
    pthread_mutex_init(c->lock, NULL);
}

void clime_child_free(struct clime_child *c) {
    CHECK(!c->pid);
    free_list(c->argv);
    free_list(c->vars);
    free(c->log_file);
    if (c->lock) pthread_mutex_destroy(c->lock);
    free(c->lock);
    *c = (struct clime_child){0};
}

/* True for variables of API keys (CLIME_OPT_KEY): $CLIME_API_KEY, $CLIME_FLEET_API_KEY, ... */
static bool is_key(const char *variable, size_t name) {
    static const char begin[] = "CLIME_", end[] = "API_KEY";
    return name >= sizeof begin + sizeof end - 2 && strncmp(variable, begin, sizeof begin - 1) == 0 &&
           strncmp(variable + name - (sizeof end - 1), end, sizeof end - 1) == 0;
}

/* Our environment without our keys, overridden by the child's variables. The strings are borrowed. */
static char **environment_of(const struct clime_child *c) {
    size_t n = 0, at = 0, n_own = 0;
    while (environ[n]) n++;
    while (c->vars[n_own]) n_own++;
    char **out = xcalloc(n + n_own + 1, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        bool own = false;
        size_t name = strcspn(environ[i], "=");
        for (size_t k = 0; k < n_own; k++) own |= !strncmp(c->vars[k], environ[i], name) && c->vars[k][name] == '=';
        if (!own && !is_key(environ[i], name)) out[at++] = environ[i];
    }
    memcpy(out + at, c->vars, n_own * sizeof *out);
    return out;
}

/* The last line or two of the child's log, on one line. */
static void log_tail(const struct clime_child *c, char out[LOG_TAIL + 1]) {
    FILE *f = c->log_file ? fopen(c->log_file, "r") : NULL;
    out[0] = 0;
    if (!f) return;
    if (fseek(f, -LOG_TAIL, SEEK_END)) rewind(f);
    size_t n = fread(out, 1, LOG_TAIL, f);
    fclose(f);
    while (n > 0 && out[n - 1] == '\n') n--;
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if (out[i] == '\n') out[i] = '|';
}

/* " (its log: PATH): the end of it", or "" without a log. */
static const char *about_log(const struct clime_child *c, char *out, size_t size) {
    char tail[LOG_TAIL + 1];
    log_tail(c, tail);
    out[0] = 0;
    if (c->log_file) snprintf(out, size, " (its log: %.600s)%s%s", c->log_file, tail[0] ? ": " : "", tail);
    return out;
}

/* ---- life cycle ---- */

static void close_pipes(struct clime_child *c) {
    if (c->to >= 0) close(c->to);
    if (c->from >= 0) close(c->from);
    c->to = c->from = -1;
}

/* in, out: the child's ends of its pipes, or -1. Returns errno. */
static int spawn(struct clime_child *c, int in, int out) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char **env = environment_of(c);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    if (in >= 0)
        posix_spawn_file_actions_adddup2(&files, in, 0);
    else
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (c->log_file) {
        posix_spawn_file_actions_addopen(&files, 1, c->log_file, O_WRONLY | O_CREAT | O_APPEND, 0644);
        posix_spawn_file_actions_adddup2(&files, 1, 2);
    }
    if (out >= 0) posix_spawn_file_actions_adddup2(&files, out, 1);
    posix_spawn_file_actions_adddup2(&files, parent_pipe[0], CLIME_CHILD_FD);
    posix_spawn_file_actions_addclosefrom_np(&files, CLIME_CHILD_FD + 1);
    posix_spawnattr_init(&attr);
    /* our signals may be masked or ignored (SIGPIPE, SIGTERM): reset to the defaults */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    pthread_mutex_lock(c->lock);
    int rc = posix_spawn(&c->pid, c->argv[0], &files, &attr, c->argv, env);
    if (rc) c->pid = 0;
    pthread_mutex_unlock(c->lock);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    return rc;
}

static int64_t word_every_us(const struct clime_child *c) {
    int64_t part = c->up_limit_us / 60;
    return part < WORD_EVERY_US ? part : WORD_EVERY_US;
}

static enum clime_err start(struct clime_child *c, struct clime_error *e) {
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    int rc = open_pipe();
    if (!rc && c->talk && (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))) rc = errno;
    if (!rc) rc = spawn(c, in[0], out[1]);
    if (in[0] >= 0) close(in[0]);
    if (out[1] >= 0) close(out[1]);
    c->to = in[1];
    c->from = out[0];
    c->started_us = clime_now_us();
    if (rc) {
        close_pipes(c);
        c->restart_us = c->started_us + MAX_PAUSE_US;
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "cannot start %s (%s): %s", c->name, c->argv[0], strerror(rc));
    }
    if (c->talk) CHECK(!fcntl(c->to, F_SETFL, O_NONBLOCK) && !fcntl(c->from, F_SETFL, O_NONBLOCK));
    c->n_starts++;
    c->state = CLIME_CHILD_STARTING;
    c->next_word_us = c->started_us + word_every_us(c);
    if (!c->up_limit_us) clime_child_is_up(c);
    return CLIME_OK;
}

void clime_child_is_up(struct clime_child *c) {
    if (c->state != CLIME_CHILD_STARTING) return;
    c->state = CLIME_CHILD_UP;
    c->up_us = clime_now_us();
    c->n_early_kills = 0;
}

/* Reaps the child when it has ended, and kills the rest of its group. */
static bool reap(struct clime_child *c, int options, int *status) {
    siginfo_t end = {0};
    if (!c->pid || waitid(P_PID, (id_t)c->pid, &end, WEXITED | WNOWAIT | options) || !end.si_pid) return false;
    pthread_mutex_lock(c->lock);
    kill(-c->pid, SIGKILL);
    while (waitpid(c->pid, status, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
    pthread_mutex_unlock(c->lock);
    close_pipes(c);
    return true;
}

static enum clime_err buried(struct clime_child *c, int status, struct clime_error *e) {
    char how[48], log[1024];
    int64_t now = clime_now_us();
    bool was_up = c->state == CLIME_CHILD_UP, killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool quick = !was_up || now - c->up_us < c->steady_us;
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "exited with code %d", WEXITSTATUS(status));
    c->state = CLIME_CHILD_DOWN;
    c->last_status = status;
    if (c->once) {
        c->restart_us = INT64_MAX;
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s %s%s", c->name, how, about_log(c, log, sizeof log));
    }
    /* a kill from outside is not the program's fault: only ends by itself count as quick deaths */
    c->n_quick_deaths = quick && !killed ? c->n_quick_deaths + 1 : 0;
    c->n_early_kills = killed && !was_up ? c->n_early_kills + 1 : 0;
    int n = c->n_quick_deaths + c->n_early_kills;
    int64_t pause = n ? (int64_t)FIRST_PAUSE_US << (n < 10 ? n : 10) : 0;
    if (pause > MAX_PAUSE_US) pause = MAX_PAUSE_US;
    c->restart_us = now + pause;
    clime_log(n || status ? CLIME_LOG_WARN : CLIME_LOG_DEBUG, "%s %s; it starts again in %.1f s%s%.600s%s", c->name,
              how, (double)pause / 1e6, c->log_file ? " (its log: " : "", c->log_file ? c->log_file : "",
              c->log_file ? ")" : "");
    if (c->n_quick_deaths < MAX_QUICK_DEATHS) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s %s, %d times in a row%s", c->name, how, c->n_quick_deaths,
                      about_log(c, log, sizeof log));
}

/* Handles a running child that is not up yet. */
static enum clime_err wait_for(struct clime_child *c, struct clime_error *e) {
    char log[1024];
    int64_t now = clime_now_us();
    double waited = (double)(now - c->started_us) / 1e6, limit = (double)c->up_limit_us / 1e6;
    if (now - c->started_us > c->up_limit_us) {
        clime_child_kill(c);
        c->started_us = now; /* reported once: the next poll finds it dead */
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for %s to come up: not within %.0f s%s", c->name, limit,
                          about_log(c, log, sizeof log));
    }
    if (now < c->next_word_us) return CLIME_OK;
    c->next_word_us = now + word_every_us(c);
    LOG_INFO("waiting for %s to come up: %.0f s of at most %.0f s%s", c->name, waited, limit,
             about_log(c, log, sizeof log));
    return CLIME_OK;
}

enum clime_err clime_child_finish(struct clime_child *c, struct clime_error *e) {
    int status;
    if (!c->pid) return CLIME_OK;
    clime_child_kill(c); /* no effect if it has ended by itself */
    reap(c, 0, &status);
    return buried(c, status, e);
}

enum clime_err clime_child_poll(struct clime_child *c, bool *died, struct clime_error *e) {
    int status;
    bool ended = reap(c, WNOHANG, &status);
    if (died) *died = ended;
    if (ended) return buried(c, status, e);
    if (c->state == CLIME_CHILD_DOWN && clime_now_us() >= c->restart_us) return start(c, e);
    return c->state == CLIME_CHILD_STARTING && c->up_limit_us > 0 ? wait_for(c, e) : CLIME_OK;
}

void clime_child_kill(struct clime_child *c) {
    pthread_mutex_lock(c->lock);
    if (c->pid) kill(-c->pid, SIGKILL);
    pthread_mutex_unlock(c->lock);
}

void clime_child_stop(struct clime_child *c) {
    int status;
    if (!c->pid) return;
    clime_child_kill(c); /* nothing in it is worth draining for a second */
    reap(c, 0, &status);
    c->state = CLIME_CHILD_DOWN;
    c->restart_us = 0;
}
