/* Weights to a server by broadcast: a group of two, the trainer and that server (NCCL between GPUs, sockets between
 * CPUs), made at the first push and kept. The request and the transfer run at the same time, so each push has a thread
 * for its request while it lasts. The owner's thread.
 */
#ifndef CLIME_TRAINER_FLEET_BROADCAST_H
#define CLIME_TRAINER_FLEET_BROADCAST_H

#include "trainer/fleet/push.h"

struct clime_broadcast { /* zero = no group yet */
    const struct clime_ops *ops;
    struct clime_comm *comm;
    char name[64];
};

/* Pushes the weights of *p (its checksum is there) and returns when the server has put them into force. After an error
 * the group is closed; the next push makes another. Every wait has a limit of 60 s. */
enum clime_err clime_broadcast_push(struct clime_broadcast *b, const char *url, const struct clime_push *p,
                                    struct clime_error *e);
void clime_broadcast_close(struct clime_broadcast *b);

#endif
