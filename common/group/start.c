/* Starts the other ranks on this host (see start.h). Owns the children and never restarts them: a group with a lost
 * rank is made anew. */
#include "common/group/start.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/os/child.h"
#include "common/rng.h"

struct clime_group_children {
    struct clime_child *child;
    int n;
    int listener;
};

static enum clime_err listen_here(int *listener, int *port, struct clime_error *e) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*listener < 0 || bind(*listener, (struct sockaddr *)&a, sizeof a) || listen(*listener, CLIME_GROUP_MAX) ||
        getsockname(*listener, (struct sockaddr *)&a, &len)) {
        if (*listener >= 0) close(*listener);
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "rank 0 cannot listen for the others: %s", strerror(errno));
    }
    *port = ntohs(a.sin_port);
    return CLIME_OK;
}

static void make_child(struct clime_child *c, int rank, const struct clime_group_options *g, const char *const *argv,
                       const char *log_dir) {
    const struct clime_place *p = &g->place;
    char name[CLIME_CHILD_NAME], *vars[7] = {0};
    vars[0] = xasprintf("RANK=%d", rank);
    vars[1] = xasprintf("LOCAL_RANK=%d", clime_place_device(g->left_out, rank));
    vars[2] = xasprintf("WORLD_SIZE=%d", p->world);
    vars[3] = xasprintf("MASTER_ADDR=%s", p->address);
    vars[4] = xasprintf("MASTER_PORT=%d", p->port);
    vars[5] = xasprintf("CLIME_GROUP_SECRET=%016" PRIx64, p->secret);
    char *log = log_dir ? xasprintf("%s/rank-%d.log", log_dir, rank) : NULL;
    snprintf(name, sizeof name, "rank %d", rank);
    const struct clime_child_options o = {
        .name = name, .argv = argv, .vars = (const char *const *)vars, .log_file = log, .once = true};
    clime_child_init(c, &o);
    for (int i = 0; vars[i]; i++) free(vars[i]);
    free(log);
}

enum clime_err clime_group_start(int world, const char *const *argv, const char *log_dir, struct clime_group_options *o,
                                 struct clime_error *e) {
    struct clime_place *p = &o->place;
    *p = (struct clime_place){.world = world, .local_rank = clime_place_device(o->left_out, 0), .address = "127.0.0.1"};
    CHECK(world > 1 && world <= CLIME_GROUP_MAX);
    clime_random_bytes(&p->secret, sizeof p->secret);
    enum clime_err rc = listen_here(&o->listener, &p->port, e);
    if (rc) return rc;
    struct clime_group_children *c = xcalloc(1, sizeof *c);
    c->n = world - 1;
    c->listener = o->listener;
    c->child = xcalloc((size_t)c->n, sizeof *c->child);
    o->children = c;
    for (int i = 0; i < c->n; i++) make_child(&c->child[i], i + 1, o, argv, log_dir);
    for (int i = 0; i < c->n && !rc; i++) rc = clime_child_poll(&c->child[i], NULL, e);
    if (rc) {
        clime_group_stop(c);
        o->children = NULL;
    }
    return rc;
}

enum clime_err clime_group_children_check(struct clime_group_children *c, int *lost, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < c->n && !rc; i++)
        if ((rc = clime_child_poll(&c->child[i], NULL, e))) *lost = i + 1;
    return rc;
}

void clime_group_stop(struct clime_group_children *c) {
    if (!c) return;
    for (int i = 0; i < c->n; i++) clime_child_kill(&c->child[i]);
    for (int i = 0; i < c->n; i++) {
        clime_child_stop(&c->child[i]);
        clime_child_free(&c->child[i]);
    }
    close(c->listener);
    free(c->child);
    free(c);
}

enum clime_err clime_group_end_with_parent(struct clime_error *e) {
    pid_t parent = getppid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return clime_fail(e, CLIME_ERR_INTERNAL, "prctl: %s", strerror(errno));
    return getppid() == parent ? CLIME_OK : clime_fail(e, CLIME_ERR_UNAVAILABLE, "rank 0 has ended already");
}
