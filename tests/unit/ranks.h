/* A group of processes for a test: rank 0 is the test, the others are forks of it. */
#ifndef CLIME_TESTS_UNIT_RANKS_H
#define CLIME_TESTS_UNIT_RANKS_H

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/group/group.h"

#define RANKS_LONG_US 60000000 /* a limit that no passing test comes near */

struct ranks {
    struct clime_place place; /* of rank 0 */
    int world;
    pid_t pid[CLIME_GROUP_MAX]; /* [1, world) */
};

/* A port of this host that nobody listens on; rank 0 will. */
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &len)) abort();
    close(fd);
    return ntohs(a.sin_port);
}

static struct clime_group_options ranks_options(const struct clime_place *p, int64_t limit_us) {
    return (struct clime_group_options){
        .place = *p, .listener = -1, .meet_limit_us = RANKS_LONG_US, .limit_us = limit_us};
}

/* Forks ranks 1..world-1, each of which runs body and ends with what it returns. */
static void ranks_fork(struct ranks *r, int world, int (*body)(const struct clime_place *p, void *arg), void *arg) {
    *r = (struct ranks){.place = {.world = world, .address = "127.0.0.1"}, .world = world};
    r->place.port = free_port();
    for (int i = 1; i < world; i++) {
        struct clime_place p = r->place;
        p.rank = p.local_rank = i;
        r->pid[i] = fork();
        if (r->pid[i] < 0) abort();
        if (r->pid[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(body(&p, arg));
        }
    }
}

/* Exit code of a rank; 128 + signal. */
static int ranks_end(struct ranks *r, int rank) {
    int status;
    if (waitpid(r->pid[rank], &status, 0) != r->pid[rank]) abort();
    r->pid[rank] = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#endif
