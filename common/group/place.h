/* Which rank of a group this process is, by what its launcher says: ours, torch's (RANK, WORLD_SIZE, LOCAL_RANK,
 * MASTER_ADDR, MASTER_PORT), Slurm's or Open MPI's own variables with MASTER_ADDR and MASTER_PORT beside them.
 * Pure but for the environment; any thread. */
#ifndef CLIME_COMMON_GROUP_PLACE_H
#define CLIME_COMMON_GROUP_PLACE_H

#include <stdint.h>

#include "common/err.h"

#define CLIME_GROUP_MAX 64 /* ranks */

struct clime_place {
    int rank, world, local_rank; /* local: among those of its host, which device is its own */
    char address[128];           /* where rank 0 is met; "" = nothing was said */
    int port;
    uint64_t secret; /* that all ranks know; 0 = none was given */
    bool ours;       /* rank 0 started it */
};

/* Which of a host's devices a rank has where those whose bits are in left_out are nobody's. */
int clime_place_device(uint64_t left_out, int rank);

/* Alone (rank 0 of 1) where nobody says anything. A batch system's variables alone do not make a group: a job of one
 * task has them too, and so has a shell in it; they count where MASTER_ADDR is set. CLIME_ERR_INPUT names a variable
 * that is no number or out of range, or missing beside others. */
enum clime_err clime_place_find(struct clime_place *out, struct clime_error *e);

/* The same, and the variables are removed from the environment: what this program starts is no rank. Before there are
 * threads. */
enum clime_err clime_place_take(struct clime_place *out, struct clime_error *e);

#endif
