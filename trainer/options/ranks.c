/* Rank options (ranks.h).
 *
 * The number of lanes affects the weights, the number of ranks does not: the effective lanes are recorded, so a run
 * begun on four ranks continues with four lanes on two. */
#include "trainer/options/ranks.h"

#include <string.h>

#include "trainer/learn/lanes.h"

int clime_rank_rows(struct clime_rank_options *r, struct clime_opt *t) {
    const struct clime_opt rows[CLIME_RANK_ROWS] = {
        {"actor-num-gpus-per-node", CLIME_OPT_INT, &r->per_node, "1", "N",
         "ranks that train together, a process a device; this one starts the others. A power of two. Under a launcher "
         "(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) it says how many there are",
         1, CLIME_GROUP_MAX, NULL, &r->per_node_given},
        {"actor-num-nodes", CLIME_OPT_INT, &r->nodes, "1", "N", "hosts of them; more than 1 needs a launcher", 1,
         CLIME_GROUP_MAX},
        {"gradient-lanes", CLIME_OPT_INT, &r->lanes, "1", "G",
         "gradients of G micro-batches, or of G parts of such, are added as a balanced tree, so that the weights are "
         "the "
         "same bits on any number of ranks that divides G; default as many as there are ranks (docs/devices.md)",
         1, 64, NULL, &r->lanes_given},
        {"context-parallel-size", CLIME_OPT_INT, &r->cp_size, "1", "C",
         "the rows of a micro-batch, C times --max-tokens-per-gpu of them, are cut into C parts, each on a rank of its "
         "own; on fewer ranks, which then need as much more memory, the weights are the same bits. A power of two "
         "(docs/devices.md)",
         1, 64},
        {"expert-model-parallel-size", CLIME_OPT_INT, &r->ep_size, "1", "N",
         "of each N neighbouring ranks every one has some experts of every layer, which stay there, and rows travel to "
         "them; other weights are in parts as with --shard-weights on. It must divide the ranks and the experts; 1 = "
         "experts are as other weights. The weights are the same bits (docs/devices.md)",
         1, CLIME_GROUP_MAX},
        {"distributed-timeout-minutes", CLIME_OPT_DOUBLE, &r->timeout_minutes, "10", "M",
         "a rank that another waits for longer ends the step with its name", 0.001, 1e6},
        {"elastic", CLIME_OPT_INT, &r->elastic, "0", "MIN",
         "a device on which ranks are lost again and again, or that cannot be opened, is left out, and the run goes on "
         "with fewer ranks, MIN at least; the next start tries all devices again. 0 = such a run ends. Needs a run "
         "folder; under a launcher it is the launcher's",
         0, CLIME_GROUP_MAX},
        {"rank-transport", CLIME_OPT_CHOICE, &r->transport, "auto", "auto|mapped|nccl",
         "how ranks on GPUs exchange bytes: mapped = through memory of each other that they map, on one host; nccl = "
         "by "
         "NCCL's send and receive; auto = mapped where all of them can, else nccl. The weights are the same bits"},
        {"shard-weights", CLIME_OPT_CHOICE, &r->shard_weights, "auto", "auto|on|off",
         "on = each rank keeps a part of every layer's weights, and a layer is gathered while the one before computes; "
         "off = each has all of them; auto = on where whole ones do not fit. The weights are the same bits"},
        {"actor-base-gpu-id", CLIME_OPT_INT, &r->base_gpu, "0", "N",
         "the GPU of a host's first rank; the next has the next", 0, -1},
        {"tensor-model-parallel-size", CLIME_OPT_INT, &r->tp_size, "1", "N",
         "slime's; every rank computes rows of its own with whole layers, so it must only divide the ranks", 1, 0},
        {"pipeline-model-parallel-size", CLIME_OPT_INT, &r->pp_size, "1", "N", "the same", 1, 0},
    };
    memcpy(t, rows, sizeof rows);
    return CLIME_RANK_ROWS;
}

bool clime_rank_decides(const char *name) {
    static const char *const not [] = {"actor-num-gpus-per-node",
                                       "actor-num-nodes",
                                       "distributed-timeout-minutes",
                                       "rank-transport",
                                       "elastic",
                                       "expert-model-parallel-size",
                                       "shard-weights",
                                       "actor-base-gpu-id",
                                       "tensor-model-parallel-size",
                                       "pipeline-model-parallel-size"};
    for (size_t i = 0; i < CLIME_COUNT(not ); i++)
        if (!strcmp(name, not [i])) return false;
    return true;
}

static enum clime_err check_elastic(int64_t least, const struct clime_learner_options *l, struct clime_error *e) {
    if (!least) return CLIME_OK;
    if (l->place.world > 1)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--elastic %lld: who started the ranks starts them again, with as many as it has (torchrun: "
                          "--nnodes MIN:MAX); give --gradient-lanes, so that fewer can go on",
                          (long long)least);
    if (least >= l->n_ranks)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--elastic %lld: the trainer has %d rank%s (--actor-num-gpus-per-node), and fewer must be enough",
            (long long)least, l->n_ranks, l->n_ranks == 1 ? "" : "s");
    return CLIME_OK;
}

static enum clime_err check_size(const char *name, int64_t size, int n_ranks, struct clime_error *e) {
    if (n_ranks % size == 0) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "--%s %lld cannot be honoured: the trainer has %d rank%s (--actor-num-gpus-per-node)", name,
                      (long long)size, n_ranks, n_ranks == 1 ? "" : "s");
}

enum clime_err clime_rank_derive(struct clime_rank_options *r, struct clime_learner_options *l, struct clime_error *e) {
    int launched = l->place.world > 1 ? l->place.world : 0;
    int64_t said = r->nodes * r->per_node;
    bool is_said = r->per_node_given || r->nodes > 1;
    if (r->nodes > 1 && !launched)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--actor-num-nodes %lld needs a launcher: start the same command for every rank with RANK, "
                          "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
                          (long long)r->nodes);
    if (launched && is_said && said != launched)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--actor-num-nodes %lld and --actor-num-gpus-per-node %lld say %lld ranks, the launcher has "
                          "started %d",
                          (long long)r->nodes, (long long)r->per_node, (long long)said, launched);
    l->n_ranks = launched ? launched : (int)said;
    if (!r->lanes_given) r->lanes = l->n_ranks > r->cp_size ? l->n_ranks : r->cp_size;
    l->gradient_lanes = (int)r->lanes;
    l->context_parallel = (int)r->cp_size;
    l->expert_parallel = (int)r->ep_size;
    l->base_gpu = (int)r->base_gpu;
    l->rank_transport = (enum clime_links_way)r->transport;
    l->shard_weights = (enum clime_shard_weights)r->shard_weights;
    l->rank_limit_us = (int64_t)(r->timeout_minutes * 60e6);
    l->elastic = (int)r->elastic;
    enum clime_err rc = check_elastic(r->elastic, l, e);
    if (!rc) rc = clime_lanes_check(l->gradient_lanes, l->context_parallel, l->n_ranks, e);
    if (!rc) rc = check_size("tensor-model-parallel-size", r->tp_size, l->n_ranks, e);
    return rc ? rc : check_size("pipeline-model-parallel-size", r->pp_size, l->n_ranks, e);
}
