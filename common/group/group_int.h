/* The group's own structure, shared by common/group/'s .c files only. */
#ifndef CLIME_COMMON_GROUP_GROUP_INT_H
#define CLIME_COMMON_GROUP_GROUP_INT_H

#include "common/group/group.h"

struct clime_group_card { /* what a rank says of itself; goes over the wire as it is: all are the same program */
    uint64_t magic, secret;
    uint64_t build; /* checksum of the program's file */
    uint64_t host;  /* of the machine's boot and its name space of processes; 0 = not known */
    int64_t pid;
    int32_t rank, world;
    char version[24], where[64]; /* host's name */
};

#define CLIME_GROUP_MAGIC 0x3150554f52474c43u /* "CLGROUP1" */

struct clime_group_verdict { /* rank 0's answer to a card */
    uint64_t magic;
    struct clime_error why; /* code CLIME_OK: come in; the roster follows */
};

struct clime_group {
    int rank, world;
    int64_t limit_us;
    const char *limit_option; /* or NULL */
    bool one_host;
    int *sock;                     /* [world] to that rank, non-blocking; -1 = none */
    int *process;                  /* [world] pidfd of a rank that no socket leads to; -1 = none */
    struct clime_group_card *card; /* [world] */
    bool is_lost;
    int lost_rank;           /* who, once one is; before, -1 */
    struct clime_error lost; /* why */
    enum clime_err said;     /* the code of its own words; CLIME_OK = it said nothing */
};

/* n bytes to or from a socket until the deadline; rank is who is at its other end. A lost rank elsewhere does not end
 * it: what is moved is small or on its way. */
enum clime_err clime_group_move(struct clime_group *g, int rank, int fd, void *at, size_t n, bool out, const char *what,
                                int64_t until_us, struct clime_error *e);

/* Rank 0's socket at its address, non-blocking. */
enum clime_err clime_group_listen(const struct clime_place *p, int64_t until_us, int *out, struct clime_error *e);

#endif
