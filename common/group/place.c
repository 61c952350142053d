/* Launchers' variables (see place.h). Called once by main, before it opens anything; owns nothing. */
#include "common/group/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of each number, in order of precedence. */
static const char *const rank_names[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"};
static const char *const world_names[] = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"};
static const char *const local_names[] = {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"};

int clime_place_device(uint64_t left_out, int rank) {
    int device = 0;
    for (;; device++)
        if ((device >= 64 || !(left_out >> device & 1)) && rank-- == 0) return device;
}

static const char *find(const char *const names[3], const char **name) {
    for (int i = 0; i < 3; i++) {
        const char *text = getenv(names[i]);
        *name = names[i];
        if (text && *text) return text;
    }
    *name = names[0];
    return NULL;
}

static enum clime_err read_number(const char *name, const char *text, long from, long to, int *out,
                                  struct clime_error *e) {
    char *end;
    long x = strtol(text, &end, 10);
    if (*end || x < from || x > to)
        return clime_fail(e, CLIME_ERR_INPUT, "%s=%.40s: a number from %ld to %ld is needed", name, text, from, to);
    *out = (int)x;
    return CLIME_OK;
}

static enum clime_err fill(const char *const names[3], long from, long to, int missing, int *out,
                           struct clime_error *e) {
    const char *name, *text = find(names, &name);
    *out = missing;
    if (text) return read_number(name, text, from, to, out, e);
    if (missing >= 0) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "MASTER_ADDR is set, so this is a rank of a group, but %s is not", name);
}

enum clime_err clime_place_find(struct clime_place *out, struct clime_error *e) {
    const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"), *secret = getenv("CLIME_GROUP_SECRET");
    *out = (struct clime_place){.world = 1};
    if (!address || !*address) return CLIME_OK;
    enum clime_err rc = fill(world_names, 1, CLIME_GROUP_MAX, -1, &out->world, e);
    if (!rc) rc = fill(rank_names, 0, out->world - 1, -1, &out->rank, e);
    if (!rc) rc = fill(local_names, 0, CLIME_GROUP_MAX, out->rank, &out->local_rank, e);
    if (rc) return rc;
    if (out->world == 1) return CLIME_OK;
    if (!port || !*port) return clime_fail(e, CLIME_ERR_INPUT, "MASTER_ADDR is set, but MASTER_PORT is not");
    if (strlen(address) >= sizeof out->address)
        return clime_fail(e, CLIME_ERR_INPUT, "MASTER_ADDR has %zu characters", strlen(address));
    snprintf(out->address, sizeof out->address, "%s", address);
    out->secret = secret ? strtoull(secret, NULL, 16) : 0;
    out->ours = secret && out->rank > 0;
    return read_number("MASTER_PORT", port, 1, 65535, &out->port, e);
}

enum clime_err clime_place_take(struct clime_place *out, struct clime_error *e) {
    enum clime_err rc = clime_place_find(out, e);
    const char *const *const names[] = {rank_names, world_names, local_names};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) unsetenv(names[i][k]);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("CLIME_GROUP_SECRET");
    return rc;
}
