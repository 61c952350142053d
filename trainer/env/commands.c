/* Environment processes: n copies of a shell command (--environment-command) run by the trainer.
 *
 * Each copy is a child (common/os/child.h) with CLIME_URL (the interface), CLIME_API_KEY if there is one, and
 * CLIME_COPY (its number) in its environment; its output goes to RUN/logs/environment-N.log. One thread watches: a copy
 * that ends is restarted, as leases make its death harmless; one that ends at every start is given up, and when all
 * are, `failed` has the reason. */
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/os/child.h"
#include "common/os/dirs.h"
#include "common/thread/periodic.h"
#include "trainer/env/environments_int.h"

#define CHECK_US 50000
#define STEADY_US 3000000 /* a copy that ends sooner counts as a failed start */

struct clime_env_commands {
    struct clime_child *copies; /* [n], owned by the watcher while it runs */
    bool *given_up;             /* [n] */
    int n;
    struct clime_periodic *watcher;
    pthread_mutex_t lock; /* guards the rest */
    int n_given_up;
    struct clime_error why; /* why the last copy was given up */
};

static void init_copy(struct clime_env_commands *c, int i, const char *command, const char *url, const char *api_key,
                      const char *dir) {
    char name[CLIME_CHILD_NAME];
    char *log = xasprintf("%s/environment-%d.log", dir, i), *copy = xasprintf("CLIME_COPY=%d", i);
    char *at = xasprintf("CLIME_URL=%s", url), *key = xasprintf("CLIME_API_KEY=%s", api_key ? api_key : "");
    const char *const vars[] = {at, copy, api_key ? key : NULL, NULL};
    snprintf(name, sizeof name, "environment %d", i);
    const struct clime_child_options o = {
        .name = name, .line = command, .vars = vars, .log_file = log, .steady_us = STEADY_US};
    clime_child_init(&c->copies[i], &o);
    free(log);
    free(copy);
    free(at);
    free(key);
}

static int64_t watch(struct clime_periodic *self, void *arg) {
    struct clime_env_commands *c = arg;
    struct clime_error e;
    (void)self;
    for (int i = 0; i < c->n; i++) {
        if (c->given_up[i] || !clime_child_poll(&c->copies[i], NULL, &e)) continue;
        LOG_ERROR("%s", e.msg);
        c->given_up[i] = true;
        pthread_mutex_lock(&c->lock);
        c->n_given_up++;
        c->why = e;
        pthread_mutex_unlock(&c->lock);
    }
    return CHECK_US;
}

bool clime_env_commands_failed(struct clime_env_commands *c, struct clime_error *e) {
    if (!c) return false;
    pthread_mutex_lock(&c->lock);
    bool failed = c->n_given_up == c->n;
    if (failed) *e = c->why;
    pthread_mutex_unlock(&c->lock);
    return failed;
}

enum clime_err clime_env_commands_start(const char *command, int n, const char *url, const char *api_key,
                                        const char *run_dir, struct clime_env_commands **out, struct clime_error *e) {
    struct clime_env_commands *c = xcalloc(1, sizeof *c);
    char *dir = xasprintf("%s/logs", run_dir);
    enum clime_err rc = clime_make_dirs(dir, e);
    *out = NULL;
    c->n = n;
    c->copies = xcalloc((size_t)n, sizeof *c->copies);
    c->given_up = xcalloc((size_t)n, sizeof *c->given_up);
    pthread_mutex_init(&c->lock, NULL);
    for (int i = 0; i < n; i++) init_copy(c, i, command, url, api_key, dir);
    free(dir);
    if (!rc && !(c->watcher = clime_periodic_start(watch, c)))
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the environments' watcher");
    if (rc)
        clime_env_commands_stop(c);
    else
        *out = c;
    return rc;
}

void clime_env_commands_stop(struct clime_env_commands *c) {
    if (!c) return;
    clime_periodic_stop(c->watcher);
    for (int i = 0; i < c->n; i++) {
        clime_child_stop(&c->copies[i]);
        clime_child_free(&c->copies[i]);
    }
    pthread_mutex_destroy(&c->lock);
    free(c->copies);
    free(c->given_up);
    free(c);
}
