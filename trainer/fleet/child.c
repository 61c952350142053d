/* Starting and watching one child process. Called by the fleet on the main thread.
 *
 * Owns the process. Invariant: a child that runs is either reaped by poll or ends with its parent; none is ever left.
 * posix_spawn and not fork: the trainer has threads and a large heap, and the child must get no descriptor but its log
 * and the pipe (a leaked socket would keep a dead connection open).
 */
#include "trainer/fleet/child.h"

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

#define CHILD_FD 3              /* where the pipe is in the child */
#define START_LIMIT_US 60000000 /* from start to the first good /health */
#define HEALTH_TIMEOUT_US 2000000
#define QUICK_DEATH_US 3000000
#define MAX_QUICK_DEATHS 5
#define RESTART_PAUSE_US 50000
#define LOG_TAIL 300

extern char **environ;

void clime_child_init(struct clime_child *c, const char *name, const char *program, const char *run_dir, int parent_fd,
                      const char *const *args, int n_args) {
    *c = (struct clime_child){.program = xstrdup(program), .parent_fd = parent_fd, .n_args = n_args};
    snprintf(c->name, sizeof c->name, "%s", name);
    c->port_file = xasprintf("%s/ports/%s", run_dir, name);
    c->log_file = xasprintf("%s/logs/%s.log", run_dir, name);
    c->args = xcalloc((size_t)n_args + 1, sizeof *c->args);
    for (int i = 0; i < n_args; i++) c->args[i] = xstrdup(args[i]);
}

void clime_child_free(struct clime_child *c) {
    for (int i = 0; i < c->n_args; i++) free(c->args[i]);
    free(c->args);
    free(c->program);
    free(c->port_file);
    free(c->log_file);
    *c = (struct clime_child){0};
}

/* The last line or two of the child's log, on one line. */
static void log_tail(const struct clime_child *c, char out[LOG_TAIL + 1]) {
    FILE *f = fopen(c->log_file, "r");
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

static enum clime_err start(struct clime_child *c, struct clime_error *e) {
    char fd[12];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    snprintf(fd, sizeof fd, "%d", CHILD_FD);
    char *own[] = {
        c->program, (char[]){"--port"}, (char[]){"0"}, (char[]){"--port-file"}, c->port_file, (char[]){"--parent-fd"},
        fd};
    size_t n_own = CLIME_COUNT(own);
    char **argv = xcalloc(n_own + (size_t)c->n_args + 1, sizeof *argv);
    memcpy(argv, own, sizeof own);
    for (int i = 0; i < c->n_args; i++) argv[n_own + (size_t)i] = c->args[i];
    unlink(c->port_file);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, c->log_file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    posix_spawn_file_actions_adddup2(&files, c->parent_fd, CHILD_FD);
    posix_spawn_file_actions_addclosefrom_np(&files, CHILD_FD + 1);
    posix_spawnattr_init(&attr);
    /* its own process group: Ctrl-C in the terminal reaches the trainer alone, which then takes the children along */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setpgroup(&attr, 0);
    int rc = posix_spawn(&c->pid, c->program, &files, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    free(argv);
    if (rc) {
        c->pid = 0;
        return clime_fail(e, CLIME_ERR_IO, "cannot start %s: %s", c->program, strerror(rc));
    }
    c->n_starts++;
    c->state = CLIME_CHILD_STARTING;
    c->started_us = clime_now_us();
    return CLIME_OK;
}

static void read_port(struct clime_child *c) {
    char text[16] = "", *end;
    FILE *f = fopen(c->port_file, "r");
    if (!f) return;
    if (fgets(text, sizeof text, f)) {
        long port = strtol(text, &end, 10);
        if (port > 0 && port < 65536 && *end == '\n') snprintf(c->url, sizeof c->url, "http://127.0.0.1:%ld", port);
    }
    fclose(f);
}

static bool answers(struct clime_child *c, struct clime_http_client *http) {
    read_port(c); /* each time: a killed trainer's server that was starting may have written its own just before */
    if (!c->url[0]) return false;
    char url[CLIME_CHILD_URL + 16];
    snprintf(url, sizeof url, "%s/health", c->url);
    struct clime_http_call call = {
        .method = "GET", .url = url, .timeout_us = HEALTH_TIMEOUT_US, .max_reply = (size_t)64 << 10};
    struct clime_http_result r = {0};
    struct clime_error e;
    bool good = !clime_http_client_call(http, &call, &r, &e) && r.status == 200;
    clime_buf_free(&r.reply);
    return good;
}

static enum clime_err buried(struct clime_child *c, int status, struct clime_error *e) {
    char tail[LOG_TAIL + 1], how[48];
    bool quick = c->state == CLIME_CHILD_STARTING || clime_now_us() - c->started_us < QUICK_DEATH_US;
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "exited with code %d", WEXITSTATUS(status));
    LOG_WARN("%s (pid %d) %s", c->name, (int)c->pid, how);
    c->state = CLIME_CHILD_DOWN;
    c->pid = 0;
    c->url[0] = 0;
    /* a signal from outside says nothing about the program: only exits by itself count */
    c->n_quick_deaths = quick && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ? c->n_quick_deaths + 1 : 0;
    c->restart_us = clime_now_us() + ((int64_t)RESTART_PAUSE_US << c->n_quick_deaths);
    if (c->n_quick_deaths < MAX_QUICK_DEATHS) return CLIME_OK;
    log_tail(c, tail);
    return clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s %s, %d times in a row (%s): %s", c->name, how, c->n_quick_deaths,
                      c->log_file, tail);
}

enum clime_err clime_child_poll(struct clime_child *c, struct clime_http_client *http, bool *died,
                                struct clime_error *e) {
    int status;
    *died = false;
    if (c->pid && waitpid(c->pid, &status, WNOHANG) == c->pid) {
        *died = true;
        return buried(c, status, e);
    }
    if (c->state == CLIME_CHILD_DOWN && clime_now_us() >= c->restart_us) return start(c, e);
    if (c->state != CLIME_CHILD_STARTING) return CLIME_OK;
    if (answers(c, http)) {
        c->state = CLIME_CHILD_UP;
        LOG_INFO("%s is up at %s (pid %d, %.1f s)", c->name, c->url, (int)c->pid,
                 (double)(clime_now_us() - c->started_us) / 1e6);
    } else if (clime_now_us() - c->started_us > START_LIMIT_US) {
        char tail[LOG_TAIL + 1];
        log_tail(c, tail);
        clime_child_kill(c);
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for %s to answer /health: not within %d s (%s): %s", c->name,
                          START_LIMIT_US / 1000000, c->log_file, tail);
    }
    return CLIME_OK;
}

void clime_child_kill(struct clime_child *c) {
    if (c->pid) kill(c->pid, SIGKILL);
}

void clime_child_stop(struct clime_child *c) {
    if (!c->pid) return;
    clime_child_kill(c); /* nothing is in it that is worth a second of draining */
    waitpid(c->pid, NULL, 0);
    c->pid = 0;
    c->state = CLIME_CHILD_DOWN;
}
