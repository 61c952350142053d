/* Finds this process's rank from the launcher's environment: ours, torch's (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 * MASTER_PORT), or Slurm's or Open MPI's own variables with MASTER_ADDR and MASTER_PORT. Pure but for the environment;
 * any thread. */
#ifndef CLIME_COMMON_GROUP_PLACE_H
#define CLIME_COMMON_GROUP_PLACE_H

#include <stdint.h>

#include "common/err.h"

#define CLIME_GROUP_MAX 64 /* ranks */

struct clime_place {
    int rank, world, local_rank; /* local: index on its host, which selects its device */
    char address[128];           /* rank 0's address; "" = none */
    int port;
    uint64_t secret; /* shared by all ranks; 0 = none */
    bool ours;       /* rank 0 started it */
};

/* The device of a local rank when the devices in the bit mask left_out are skipped. */
int clime_place_device(uint64_t left_out, int rank);

/* Rank 0 of 1 without a launcher. A batch system's variables count only with MASTER_ADDR: single-task jobs, and shells
 * in them, have them too. CLIME_ERR_INPUT names a variable that is no number, out of range or missing. */
enum clime_err clime_place_find(struct clime_place *out, struct clime_error *e);

/* Same, and removes the variables from the environment: child processes are no ranks. Call before threads start. */
enum clime_err clime_place_take(struct clime_place *out, struct clime_error *e);

#endif
