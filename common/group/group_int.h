/* Internals of a group, shared by the .c files of common/group/. */
#ifndef CLIME_COMMON_GROUP_GROUP_INT_H
#define CLIME_COMMON_GROUP_GROUP_INT_H

#include "common/group/group.h"

struct clime_group_card { /* a rank's identity; sent as raw bytes: all ranks run the same program */
    uint64_t magic, secret;
    uint64_t build; /* checksum of the program's file */
    uint64_t host;  /* hash of boot id and PID namespace; 0 = unknown */
    int64_t pid;
    int32_t rank, world;
    char version[24], where[64]; /* host name */
};

#define CLIME_GROUP_MAGIC 0x3150554f52474c43u /* "CLGROUP1" */

struct clime_group_verdict { /* rank 0's answer to a card */
    uint64_t magic;
    struct clime_error why; /* CLIME_OK: admitted, and the roster follows */
};

struct clime_group {
    int rank, world;
    int64_t limit_us;
    const char *limit_option; /* or NULL */
    bool one_host;
    int *sock;                     /* [world] socket to each rank, non-blocking; -1 = none */
    int *process;                  /* [world] pidfd of a rank without a socket; -1 = none */
    struct clime_group_card *card; /* [world] */
    bool is_lost;
    int lost_rank;           /* the lost rank; -1 before */
    struct clime_error lost; /* reason */
    enum clime_err said;     /* the code it reported; CLIME_OK = none */
};

/* Sends or receives n bytes by the deadline; rank is the peer. Continues when another rank is lost: the data is small
 * or already in flight. */
enum clime_err clime_group_move(struct clime_group *g, int rank, int fd, void *at, size_t n, bool out, const char *what,
                                int64_t until_us, struct clime_error *e);

/* Opens rank 0's listening socket, non-blocking. */
enum clime_err clime_group_listen(const struct clime_place *p, int64_t until_us, int *out, struct clime_error *e);

#endif
