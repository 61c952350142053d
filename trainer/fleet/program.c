/* Program of the fleet: child process, port file and health thread. Called on the fleet's thread, which owns everything
 * not guarded by `health`.
 *
 * Invariant: the health thread reports on one start of the child (`start`); answers of a replaced process are ignored.
 */
#include "trainer/fleet/program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/log.h"

#define ANSWER_LIMIT_US 2000000 /* minimum limit for one /health */
#define STARTING_PAUSE_US 20000 /* polling interval until it is up */
#define STEADY_US 3000000       /* ending sooner than this after coming up is a quick death */
#define MAX_REPLY ((size_t)64 << 10)

struct clime_health {
    struct clime_child *child;
    const char *port_file;
    int64_t silence_us, ask_every_us;
    struct clime_http_client *http; /* the thread's */
    struct clime_periodic *thread;
    pthread_mutex_t lock; /* guards the fields below */
    int start;            /* number of the polled start of the child; 0 = none runs */
    bool up;
    char url[CLIME_PROGRAM_URL]; /* of the first 200 */
    int64_t heard_us;            /* time of the last answer */
};

/* ---- the thread ---- */

static bool read_port(const char *path, char url[CLIME_PROGRAM_URL]) {
    char text[16] = "", *end;
    FILE *f = fopen(path, "r");
    long port = 0;
    if (!f) return false;
    if (fgets(text, sizeof text, f)) {
        port = strtol(text, &end, 10);
        if (*end != '\n' || port > 65535) port = 0;
    }
    fclose(f);
    if (port > 0) snprintf(url, CLIME_PROGRAM_URL, "http://127.0.0.1:%ld", port);
    return port > 0;
}

static bool stopping(void *arg) {
    return clime_periodic_stopping(arg);
}

/* The status of /health; 0 = no answer. */
static int ask(struct clime_health *h, struct clime_periodic *self, const char *url, int64_t limit_us) {
    static const char *const headers[] = {"Connection: close", NULL}; /* an idle connection occupies a server thread */
    char full[CLIME_PROGRAM_URL + 16];
    snprintf(full, sizeof full, "%s/health", url);
    struct clime_http_call call = {.method = "GET",
                                   .url = full,
                                   .headers = headers,
                                   .timeout_us = limit_us,
                                   .max_reply = MAX_REPLY,
                                   .cancel = stopping,
                                   .arg = self};
    struct clime_http_result r = {0};
    struct clime_error e;
    int status = clime_http_client_call(h->http, &call, &r, &e) ? 0 : r.status;
    clime_buf_free(&r.reply);
    return status;
}

static int64_t look(struct clime_periodic *self, void *arg) {
    struct clime_health *h = arg;
    char url[CLIME_PROGRAM_URL];
    pthread_mutex_lock(&h->lock);
    int start = h->start;
    bool up = h->up;
    snprintf(url, sizeof url, "%s", h->url);
    pthread_mutex_unlock(&h->lock);
    /* until it is up, read the port each time: a starting server of a killed trainer may have just written its own */
    if (!start || (!up && !read_port(h->port_file, url))) return STARTING_PAUSE_US;
    int64_t third = h->silence_us / 3; /* a busy server may be slow */
    int status = ask(h, self, url, up && third > ANSWER_LIMIT_US ? third : ANSWER_LIMIT_US);
    int64_t now = clime_now_us();
    pthread_mutex_lock(&h->lock);
    bool current = h->start == start && h->up == up;
    if (current && status) h->heard_us = now;
    if (current && !up && status == 200) {
        h->up = true;
        memcpy(h->url, url, sizeof url);
    }
    bool silent = current && up && now - h->heard_us > h->silence_us;
    if (silent) h->start = 0; /* report once */
    up = h->up;
    pthread_mutex_unlock(&h->lock);
    if (silent) {
        LOG_WARN("%s runs but has not answered /health for %.0f s: it is replaced", h->child->name,
                 (double)h->silence_us / 1e6);
        clime_child_kill(h->child);
    }
    return up ? h->ask_every_us : STARTING_PAUSE_US;
}

/* ---- the fleet's thread ---- */

enum clime_err clime_program_init(struct clime_program *p, const struct clime_program_options *o,
                                  struct clime_error *e) {
    char fd[12];
    char *log = xasprintf("%s/logs/%s.log", o->run_dir, o->name);
    *p = (struct clime_program){.port_file = xasprintf("%s/ports/%s", o->run_dir, o->name)};
    snprintf(fd, sizeof fd, "%d", CLIME_CHILD_FD);
    const char *const own[] = {o->path, "--port", "0", "--port-file", p->port_file, "--parent-fd", fd};
    const char **argv = xcalloc(CLIME_COUNT(own) + (size_t)o->n_args + 1, sizeof *argv);
    memcpy(argv, own, sizeof own);
    for (int i = 0; i < o->n_args; i++) argv[CLIME_COUNT(own) + (size_t)i] = o->args[i];
    const struct clime_child_options c = {.name = o->name,
                                          .argv = argv,
                                          .vars = o->vars,
                                          .log_file = log,
                                          .up_limit_us = o->start_limit_us,
                                          .steady_us = STEADY_US};
    clime_child_init(&p->child, &c);
    free(argv);
    free(log);
    struct clime_health *h = p->health = xcalloc(1, sizeof *h);
    h->child = &p->child;
    h->port_file = p->port_file;
    h->silence_us = o->silence_us;
    h->ask_every_us = o->ask_every_us;
    h->http = clime_http_client_new();
    pthread_mutex_init(&h->lock, NULL);
    h->thread = clime_periodic_start(look, h);
    return h->thread ? CLIME_OK : clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread that watches %s", o->name);
}

static void health_free(struct clime_health *h) {
    if (!h) return;
    clime_periodic_stop(h->thread);
    clime_http_client_free(h->http);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void clime_program_free(struct clime_program *p) {
    health_free(p->health);
    if (p->child.lock) clime_child_stop(&p->child);
    clime_child_free(&p->child);
    free(p->port_file);
    *p = (struct clime_program){0};
}

enum clime_err clime_program_poll(struct clime_program *p, bool *died, struct clime_error *e) {
    struct clime_health *h = p->health;
    if (p->child.state == CLIME_CHILD_DOWN) unlink(p->port_file);
    int n_starts = p->child.n_starts;
    enum clime_err rc = clime_child_poll(&p->child, died, e);
    pthread_mutex_lock(&h->lock);
    if (*died || n_starts != p->child.n_starts) {
        h->start = *died ? 0 : p->child.n_starts;
        h->up = false;
        h->heard_us = clime_now_us();
        p->url[0] = 0;
    } else if (h->up && p->child.state == CLIME_CHILD_STARTING) {
        clime_child_is_up(&p->child);
        memcpy(p->url, h->url, sizeof p->url);
        LOG_INFO("%s is up at %s (pid %d, %.1f s)", p->child.name, p->url, (int)p->child.pid,
                 (double)(clime_now_us() - p->child.started_us) / 1e6);
    }
    pthread_mutex_unlock(&h->lock);
    return rc;
}
