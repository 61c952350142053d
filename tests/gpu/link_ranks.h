/* Ranks that test links between GPUs, a process each. CUDA does not live through fork, so a test never opens a GPU
 * itself: every case is a family of its own. */
#ifndef CLIME_TESTS_GPU_LINK_RANKS_H
#define CLIME_TESTS_GPU_LINK_RANKS_H

#include "kernels/links.h"
#include "tests/unit/ranks.h"

enum { SHORT_US = 1000000 }; /* a limit, where a rank is lost */

struct work {
    enum clime_links_way way;
    int n_gpus;
    int (*body)(const struct clime_place *p, void *work);
    bool loses, frozen; /* the last rank: it ends, or stops */
    bool puts;          /* into windows */
};

struct rank {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_group *group;
    struct clime_links *links;
};

#define CHECK_RC(call)                                                                                                 \
    do {                                                                                                               \
        if (call) {                                                                                                    \
            printf("FAILED: rank %d: %s: %s\n", p->rank, #call, e.msg);                                                \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int open_rank(const struct clime_place *p, const struct work *w, struct rank *r) {
    const struct clime_group_options o = ranks_options(p, RANKS_LONG_US);
    const struct clime_dev_options dev = {.dt = CLIME_BF16, .gpu = p->local_rank % w->n_gpus, .links = w->way};
    struct clime_error e;
    CHECK_RC(clime_ops_choose("cuda", &r->ops, &e));
    CHECK_RC(r->ops->open(&dev, &r->dev, &e));
    CHECK_RC(clime_group_meet(&o, &r->group, &e));
    CHECK_RC(clime_links_open(r->ops, r->dev, r->group, &r->links, &e));
    return 0;
}

static void close_rank(struct rank *r) {
    clime_links_close(r->links);
    clime_group_close(r->group);
    r->ops->close(r->dev);
}

static int exists(int gpu) {
    const struct clime_dev_options dev = {.dt = CLIME_BF16, .gpu = gpu};
    const struct clime_ops *ops;
    struct clime_dev *d;
    struct clime_error e;
    if (clime_ops_choose("cuda", &ops, &e) || ops->open(&dev, &d, &e)) return 1;
    ops->close(d);
    return 0;
}

static int wait_for(pid_t pid) {
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

/* GPUs for the ranks, at most one each. */
static int count_gpus(int world) {
    int n = 0;
    for (; n < world; n++) {
        pid_t pid = fork();
        if (pid == 0) _exit(exists(n));
        if (wait_for(pid)) break;
    }
    return n;
}

/* Runs the work in a family of its own: 0 when every rank has ended as it should. */
static int family(const char *name, int world, struct work *w) {
    printf("%s\n", name);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct ranks r;
        int last = w->loses ? world - 1 : world, bad = 0;
        ranks_fork(&r, world, w->body, w);
        int own = w->body(&r.place, w);
        if (own) kill(r.pid[1], SIGKILL); /* the others may wait for this one */
        for (int i = 1; i < last; i++) bad |= ranks_end(&r, i);
        if (last < world) kill(r.pid[last], SIGKILL);
        if (bad || own) printf("FAILED: %s: rank 0 ended with %d, the others with %d\n", name, own, bad);
        fflush(stdout);
        _exit(own || bad);
    }
    return wait_for(pid);
}

#endif
