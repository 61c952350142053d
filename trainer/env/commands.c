/* Environments that the trainer starts itself: n copies of a shell command (--environment-command).
 *
 * Each copy has CLIME_URL (the interface), CLIME_API_KEY where there is one, and CLIME_COPY (its number) in its
 * environment, and its output in RUN/logs/environment-N.log. One thread watches: a copy that ends is started again
 * after a pause, since leases make its death harmless. Copies are killed with their process group at the end, and by
 * the kernel when the trainer dies. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "trainer/env/env_int.h"

#define CHECK_US 50000
#define RESTART_PAUSE_US 1000000

struct copy {
    pid_t pid; /* 0 = not running */
    int64_t start_at_us;
    char *log, number[12];
};

struct clime_env_commands {
    char *command, *url, *api_key; /* api_key NULL = none */
    struct copy *copies;           /* [n], the watcher's */
    int n;
    pthread_t watcher;
    bool has_watcher;
    atomic_bool stop;
};

/* Everything the child needs is made before the fork: between fork and exec only calls that are safe there. */
static void start(struct clime_env_commands *c, struct copy *k, char *const *vars) {
    char name[] = "sh", flag[] = "-c", *const argv[] = {name, flag, c->command, NULL};
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        int log = open(k->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), none = open("/dev/null", O_RDONLY);
        if (log < 0 || none < 0) _exit(126);
        dup2(none, 0);
        dup2(log, 1);
        dup2(log, 2);
        execve("/bin/sh", argv, vars);
        _exit(127);
    }
    if (pid > 0)
        k->pid = pid;
    else
        LOG_WARN("environment %s: cannot fork: %s", k->number, strerror(errno));
}

static char **variables(const struct clime_env_commands *c, const struct copy *k) {
    extern char **environ;
    size_t n = 0, at = 0;
    while (environ[n]) n++;
    char **vars = xcalloc(n + 4, sizeof *vars);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "CLIME_URL=", 10) && strncmp(environ[i], "CLIME_COPY=", 11) &&
            strncmp(environ[i], "CLIME_API_KEY=", 14))
            vars[at++] = xstrdup(environ[i]);
    vars[at++] = xasprintf("CLIME_URL=%s", c->url);
    vars[at++] = xasprintf("CLIME_COPY=%s", k->number);
    if (c->api_key) vars[at++] = xasprintf("CLIME_API_KEY=%s", c->api_key);
    return vars;
}

static void watch(struct clime_env_commands *c, struct copy *k) {
    int status;
    if (k->pid && waitpid(k->pid, &status, WNOHANG) == k->pid) {
        if (!atomic_load(&c->stop))
            LOG_WARN("environment %s has ended (%s %d); its log: %s", k->number,
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), k->log);
        k->pid = 0;
        k->start_at_us = clime_now_us() + RESTART_PAUSE_US;
    }
    if (k->pid || clime_now_us() < k->start_at_us) return;
    char **vars = variables(c, k);
    start(c, k, vars);
    if (!k->pid) k->start_at_us = clime_now_us() + RESTART_PAUSE_US;
    for (size_t i = 0; vars[i]; i++) free(vars[i]);
    free(vars);
}

static void *watcher_main(void *arg) {
    struct clime_env_commands *c = arg;
    while (!atomic_load(&c->stop)) {
        for (int i = 0; i < c->n; i++) watch(c, &c->copies[i]);
        clime_sleep_us(CHECK_US);
    }
    /* PR_SET_PDEATHSIG follows this thread, so it outlives the copies. */
    for (int i = 0; i < c->n; i++)
        if (c->copies[i].pid) kill(-c->copies[i].pid, SIGKILL);
    for (int i = 0; i < c->n; i++)
        if (c->copies[i].pid) waitpid(c->copies[i].pid, NULL, 0);
    return NULL;
}

enum clime_err clime_env_commands_start(const char *command, int n, const char *url, const char *api_key,
                                        const char *run_dir, struct clime_env_commands **out, struct clime_error *e) {
    struct clime_env_commands *c = xcalloc(1, sizeof *c);
    char *dir = xasprintf("%s/logs", run_dir);
    enum clime_err rc = clime_make_dirs(dir, e);
    *out = NULL;
    c->command = xstrdup(command);
    c->url = xstrdup(url);
    c->api_key = api_key ? xstrdup(api_key) : NULL;
    c->n = n;
    c->copies = xcalloc((size_t)n, sizeof *c->copies);
    atomic_init(&c->stop, false);
    for (int i = 0; i < n; i++) {
        snprintf(c->copies[i].number, sizeof c->copies[i].number, "%d", i);
        c->copies[i].log = xasprintf("%s/environment-%d.log", dir, i);
    }
    free(dir);
    if (!rc) {
        c->has_watcher = !pthread_create(&c->watcher, NULL, watcher_main, c);
        if (!c->has_watcher) rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the environments' watcher");
    }
    if (rc)
        clime_env_commands_stop(c);
    else
        *out = c;
    return rc;
}

void clime_env_commands_stop(struct clime_env_commands *c) {
    if (!c) return;
    atomic_store(&c->stop, true);
    if (c->has_watcher) pthread_join(c->watcher, NULL);
    for (int i = 0; i < c->n; i++) free(c->copies[i].log);
    free(c->copies);
    free(c->command);
    free(c->url);
    free(c->api_key);
    free(c);
}
