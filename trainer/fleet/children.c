/* The fleet's own children: clime-router and clime-server, started, watched and started again. Called by fleet.c on the
 * main thread. Invariant: a child that died is seen before anything is sent to its successor: it has no version and no
 * admission until it was pushed to. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/os/dirs.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

/* clime-router and clime-server are beside clime-train. */
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

static void make_server(struct clime_fleet *f, int i, const char *program) {
    const struct clime_opt_list *more = f->o.server_args;
    const char *dtype = !strcmp(f->o.dtype, "bf16") ? "bfloat16" : !strcmp(f->o.dtype, "f32") ? "float32" : "auto";
    const char *own[] = {"--model-path",
                         f->o.hf_checkpoint,
                         "--device",
                         f->o.device,
                         "--dtype",
                         dtype,
                         "--weight-version",
                         f->o.serve_folder ? "0" : "initial",
                         "--load-format",
                         f->o.share ? "none" : "auto",
                         "--mem-fraction-static",
                         f->o.share ? "0.85" : "0.5"};
    int n_own = (int)CLIME_COUNT(own), n = n_own + more->n;
    const char **args = xcalloc((size_t)n, sizeof *args);
    char name[32];
    memcpy(args, own, sizeof own);
    for (int k = 0; k < more->n; k++) args[n_own + k] = more->items[k];
    snprintf(name, sizeof name, "server-%d", i);
    clime_child_init(&f->children[i], name, program, f->o.run_dir, f->pipe_read, args, n);
    f->servers[i] = (struct clime_fleet_server){
        .child = &f->children[i], .pushed = -1, .way = f->o.share ? CLIME_BY_SHARE : CLIME_BY_HTTP};
    free(args);
}

enum clime_err clime_fleet_open_children(struct clime_fleet *f, struct clime_error *e) {
    char *router = NULL, *server = NULL, *dir;
    int fds[2];
    enum clime_err rc;
    static const char *const dirs[] = {"ports", "logs"};
    for (size_t i = 0; i < CLIME_COUNT(dirs); i++) {
        dir = xasprintf("%s/%s", f->o.run_dir, dirs[i]);
        rc = clime_make_dirs(dir, e);
        free(dir);
        if (rc) return rc;
    }
    if ((rc = program_path("clime-router", &router, e)) || (rc = program_path("clime-server", &server, e))) goto done;
    if (pipe2(fds, O_CLOEXEC)) {
        rc = clime_fail(e, CLIME_ERR_IO, "pipe: %s", strerror(errno));
        goto done;
    }
    f->pipe_read = fds[0];
    f->pipe_write = fds[1];
    clime_child_init(&f->router, "router", router, f->o.run_dir, f->pipe_read,
                     (const char *const *)f->o.router_args->items, f->o.router_args->n);
    f->n_children = f->n_servers = f->o.num_servers;
    f->children = xcalloc((size_t)f->n_children, sizeof *f->children);
    for (int i = 0; i < f->n_children; i++) make_server(f, i, server);
    rc = clime_fleet_poll_children(f, e); /* starts them all */
done:
    free(router);
    free(server);
    return rc;
}

enum clime_err clime_fleet_poll_children(struct clime_fleet *f, struct clime_error *e) {
    bool died;
    enum clime_err rc = clime_child_poll(&f->router, f->http, &died, e);
    if (died) {
        clime_event(f->o.ledger, f->o.incarnation, "child", "router died");
        clime_fleet_set_url(f, "");
        for (int i = 0; i < f->n_servers; i++) f->servers[i].admitted = false;
    }
    if (rc) return rc;
    if (f->router.state == CLIME_CHILD_UP && strcmp(f->url, f->router.url)) clime_fleet_set_url(f, f->router.url);
    for (int i = 0; i < f->n_children; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        rc = clime_child_poll(s->child, f->http, &died, e);
        if (died) {
            clime_event(f->o.ledger, f->o.incarnation, "child", "%s died", s->child->name);
            clime_fleet_lost(f, s);
            s->url[0] = 0;
        }
        if (rc) return rc;
        if (s->child->state == CLIME_CHILD_UP && !s->url[0]) snprintf(s->url, sizeof s->url, "%s", s->child->url);
    }
    return CLIME_OK;
}
