/* Pushes weights to a server by broadcast in a group of two, trainer and server (NCCL between GPUs, sockets between
 * CPUs). The group is made at the first push and kept. Request and transfer run concurrently, so each push starts a
 * thread for its request. Owner's thread. */
#ifndef CLIME_TRAINER_FLEET_BROADCAST_H
#define CLIME_TRAINER_FLEET_BROADCAST_H

#include "trainer/fleet/push.h"

struct clime_broadcast { /* zero = no group yet */
    const struct clime_ops *ops;
    struct clime_comm *comm;
    char name[64];
};

/* Pushes the weights of *p (checksum set) and returns once the server uses them. An error closes the group; the next
 * push makes another. Every wait is limited to 60 s. */
enum clime_err clime_broadcast_push(struct clime_broadcast *b, const char *url, const struct clime_push *p,
                                    struct clime_error *e);
void clime_broadcast_close(struct clime_broadcast *b);

#endif
