/* Child processes of the fleet: starts, watches and restarts clime-router and clime-server. Called by the fleet's loop.
 * Invariant: a child's death is handled before anything is sent to its successor, which has no version or admission
 * until it was pushed to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/secret.h"
#include "common/os/dirs.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

/* Path of a program in clime-train's directory. */
static enum clime_err program_path(const char *name, char **out, struct clime_error *e) {
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return clime_fail(e, CLIME_ERR_IO, "cannot read /proc/self/exe: %s", strerror(errno));
    self[n] = 0;
    char *slash = strrchr(self, '/');
    *out = xasprintf("%.*s/%s", (int)(slash - self), self, name);
    if (access(*out, X_OK) == 0) return CLIME_OK;
    enum clime_err rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "%s is not there to be started", *out);
    free(*out);
    *out = NULL;
    return rc;
}

static enum clime_err init_program(struct clime_fleet *f, struct clime_program *p, const char *name, const char *path,
                                   const char *const *args, int n_args, struct clime_error *e) {
    char key[3][64];
    static const char *const names[] = {"CLIME_API_KEY", "CLIME_ADMIN_API_KEY", "CLIME_WORKER_API_KEY"};
    for (size_t i = 0; i < CLIME_COUNT(names); i++) snprintf(key[i], sizeof key[i], "%s=%s", names[i], f->key);
    const char *const vars[] = {key[0], key[1], key[2], NULL}; /* not on the command line, which all users can read */
    const struct clime_program_options o = {.name = name,
                                            .path = path,
                                            .run_dir = f->o.run_dir,
                                            .args = args,
                                            .n_args = n_args,
                                            .vars = vars,
                                            .start_limit_us = f->o.start_limit_us,
                                            .silence_us = f->o.silence_us,
                                            .ask_every_us = f->o.ask_every_us};
    return clime_program_init(p, &o, e);
}

/* Ranks that provide server i's devices and weights: servers take consecutive ranks, one per device; a server with more
 * devices than ranks uses rank 0's weights. gpus: the server's --gpu. */
static const struct clime_model_card *owner_of(const struct clime_fleet_options *o, int i, struct clime_buf *gpus) {
    const bool each = o->owners && o->n_owners % o->tp_size == 0;
    const struct clime_model_card *first = o->owners ? &o->owners[each ? i * o->tp_size % o->n_owners : 0] : NULL;
    clime_buf_printf(gpus, "%d", first ? first->gpu : 0);
    for (int k = 1; each && k < o->tp_size; k++) clime_buf_printf(gpus, ",%d", first[k].gpu);
    return first;
}

static enum clime_err make_server(struct clime_fleet *f, int i, const char *program, struct clime_error *e) {
    const struct clime_opt_list *more = f->o.server_args;
    char room[24], tp[24];
    struct clime_buf gpus;
    clime_buf_init(&gpus, 4096);
    const struct clime_model_card *owner = owner_of(&f->o, i, &gpus);
    snprintf(tp, sizeof tp, "%d", f->o.tp_size);
    snprintf(room, sizeof room, "%d", f->o.concurrency > CLIME_FLEET_ROOM ? f->o.concurrency : CLIME_FLEET_ROOM);
    const char *own[] = {"--max-concurrent-requests",
                         room,
                         "--tp-size",
                         tp,
                         "--model-path",
                         f->o.hf_checkpoint,
                         "--device",
                         f->o.device,
                         "--dtype",
                         f->o.dtype,
                         "--weight-version",
                         f->o.serve_folder ? f->push.label : "initial",
                         "--load-format",
                         owner && !f->o.copied ? "none" : "auto",
                         "--gpu",
                         clime_buf_str(&gpus).ptr,
                         "--mem-fraction-static",
                         owner ? "0.85" : "0.5",
                         "--enable-return-routed-experts"}; /* the last one is optional */
    int n_own = (int)CLIME_COUNT(own) - !f->o.says_experts, n = n_own + more->n;
    const char **args = xcalloc((size_t)n, sizeof *args);
    char name[CLIME_CHILD_NAME];
    memcpy(args, own, (size_t)n_own * sizeof *own);
    for (int k = 0; k < more->n; k++) args[n_own + k] = more->items[k];
    snprintf(name, sizeof name, "server-%d", i);
    enum clime_err rc = init_program(f, &f->children[i], name, program, args, n, e);
    struct clime_fleet_server *s = clime_fleet_add(f);
    s->child = &f->children[i];
    s->owners = owner;
    s->n_owners = f->o.in_parts ? f->o.n_owners : 1;
    s->way = !owner ? CLIME_BY_HTTP : f->o.copied ? CLIME_BY_IPC : CLIME_BY_SHARE;
    clime_buf_free(&gpus);
    free(args);
    return rc;
}

/* Makes the run's key, so that the children reject other users of this machine. */
static enum clime_err make_key(struct clime_fleet *f, struct clime_error *e) {
    char *path = xasprintf("%s/ports/api-key", f->o.run_dir);
    enum clime_err rc = clime_secret_make(path, f->key, e);
    free(path);
    return rc;
}

/* Maximum of requests that our server will report to run together. */
static int most_together(const struct clime_opt_list *args) {
    static const char *const names[] = {"--max-running-requests", "--max-num-seqs"};
    int64_t n = 0;
    for (int i = 0; i < args->n; i++) {
        const char *word = args->items[i], *next = i + 1 < args->n ? args->items[i + 1] : "";
        for (size_t k = 0; k < CLIME_COUNT(names); k++) {
            const size_t len = strlen(names[k]);
            if (strncmp(word, names[k], len) == 0 && (!word[len] || word[len] == '='))
                n = strtoll(word[len] ? word + len + 1 : next, NULL, 10);
        }
    }
    return n <= 0 ? CLIME_FLEET_TOGETHER : n < CLIME_FLEET_ROOM ? (int)n : CLIME_FLEET_ROOM;
}

static enum clime_err make_router(struct clime_fleet *f, const char *program, struct clime_error *e) {
    const struct clime_opt_list *more = f->o.router_args;
    const char **args = xcalloc((size_t)more->n + 2, sizeof *args);
    char room[24];
    int n = 0;
    int64_t in_flight = f->o.concurrency ? f->o.concurrency : most_together(f->o.server_args);
    in_flight *= f->o.num_servers;
    if (in_flight > CLIME_FLEET_MOST) in_flight = CLIME_FLEET_MOST;
    snprintf(room, sizeof room, "%lld", (long long)in_flight);
    if (in_flight > CLIME_FLEET_ROOM) {
        args[n++] = "--max-concurrent-requests";
        args[n++] = room;
    }
    for (int i = 0; i < more->n; i++) args[n++] = more->items[i]; /* the user's arguments come last and win */
    enum clime_err rc = init_program(f, &f->router, "router", program, args, n, e);
    free(args);
    return rc;
}

enum clime_err clime_fleet_open_children(struct clime_fleet *f, struct clime_error *e) {
    char *router = NULL, *server = NULL, *dir;
    enum clime_err rc;
    static const char *const dirs[] = {"ports", "logs"};
    for (size_t i = 0; i < CLIME_COUNT(dirs); i++) {
        dir = xasprintf("%s/%s", f->o.run_dir, dirs[i]);
        rc = clime_make_dirs(dir, e);
        free(dir);
        if (rc) return rc;
    }
    if ((rc = program_path("clime-router", &router, e)) || (rc = program_path("clime-server", &server, e))) goto done;
    if ((rc = make_key(f, e)) || (rc = make_router(f, router, e))) goto done;
    f->n_children = f->o.num_servers;
    f->children = xcalloc((size_t)f->n_children, sizeof *f->children);
    for (int i = 0; i < f->n_children && !rc; i++) rc = make_server(f, i, server, e);
    if (!rc) rc = clime_fleet_poll_children(f, e); /* starts all of them */
done:
    free(router);
    free(server);
    return rc;
}

enum clime_err clime_fleet_poll_children(struct clime_fleet *f, struct clime_error *e) {
    bool died;
    enum clime_err rc = clime_program_poll(&f->router, &died, e);
    if (died) {
        clime_event(f->o.ledger, f->o.incarnation, "child", "router died");
        clime_fleet_set_url(f, "");
        for (int i = 0; i < f->n_servers; i++) f->servers[i]->in_router = false;
    }
    if (rc) return rc;
    if (clime_program_is_up(&f->router) && strcmp(f->url, f->router.url)) clime_fleet_set_url(f, f->router.url);
    for (int i = 0; i < f->n_children; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (s->child->child.state == CLIME_CHILD_DOWN && clime_fleet_left_out(s, clime_now_us())) continue;
        rc = clime_program_poll(s->child, &died, e);
        if (rc) s->last = *e;
        if (died) {
            clime_event(f->o.ledger, f->o.incarnation, "child", "%s died", s->child->child.name);
            clime_fleet_ended(f, s);
        }
        if (rc && !clime_fleet_leave_out(f, s)) return rc;
        if (!s->died && clime_program_is_up(s->child) && !s->url[0])
            snprintf(s->url, sizeof s->url, "%s", s->child->url);
    }
    return CLIME_OK;
}
