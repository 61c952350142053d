/* Tensor-parallel serving: rank 0, the server, sends its steps and memory operations to the other ranks.
 *
 * A follower is a process with its share of the model, the same runner and no scheduler. It replays each message of the
 * leader, so both run the same rows over the same pages. Its results reach the leader over the links, inside the
 * forward pass (model/ranks.h). Only the leader samples.
 *
 * The main thread starts and links them; then the engine thread owns them. A lost or late follower ends the engine: the
 * model keeps the first failure (clime_model_ranks_check), and no further message is sent.
 */
#ifndef CLIME_SERVER_ENGINE_FOLLOWERS_H
#define CLIME_SERVER_ENGINE_FOLLOWERS_H

#include "common/group/group.h"
#include "server/engine/step_arrays.h"
#include "server/engine/step_graphs.h"
#include "server/schedule/scheduler.h"

enum clime_follow_word {
    CLIME_FOLLOW_ROWS,      /* run these rows; their arrays follow, then copies of pages */
    CLIME_FOLLOW_LOGITS,    /* run the head over some of them; row numbers follow */
    CLIME_FOLLOW_OWN,       /* allocate memory for weights. Has a reply */
    CLIME_FOLLOW_WEIGHTS,   /* receive your share of new weights */
    CLIME_FOLLOW_OPEN,      /* map your share in another process; all ranks' handles follow. Has a reply */
    CLIME_FOLLOW_STAGE,     /* copy your share from other processes' parts; handles and ranges follow. Has a reply */
    CLIME_FOLLOW_USE,       /* switch to the mapped or copied weights, */
    CLIME_FOLLOW_LET_GO,    /* or drop them */
    CLIME_FOLLOW_GIVE_BACK, /* free memory by tags. Has a reply */
    CLIME_FOLLOW_TAKE_BACK, /* the same */
    CLIME_FOLLOW_READ,      /* send your share of a range of weights. The reply is the bytes alone */
    CLIME_FOLLOW_END
};

struct clime_follow { /* a message's header; every rank is the same program on one host */
    enum clime_follow_word word;
    struct clime_step_shape shape;
    int n_copies, n_rows;
    unsigned tags;   /* enum clime_memory_tag */
    int64_t from, n; /* READ: range in the whole model's buffer, bytes */
    int n_handles, n_ranges;
};

struct clime_follow_answer {
    size_t kv, weights; /* bytes freed or allocated */
    uint64_t sum;       /* of the staged weights */
    struct clime_error error;
};

struct clime_follow_plan { /* the leader's settings, sent once, before weights are loaded */
    struct clime_sched_options sched;
    int max_len;
    int graph_bs[CLIME_GRAPH_MAX_SIZES], n_graph_bs; /* sizes of recorded steps */
    int64_t limit_us;
};

#define CLIME_FOLLOW_WORDS ((size_t)1 << 28)                                          /* largest step arrays */
#define CLIME_FOLLOW_BYTES (CLIME_FOLLOW_WORDS * sizeof(int32_t) + ((size_t)1 << 20)) /* largest message */

#define CLIME_FOLLOW_START_US ((int64_t)600000000) /* to connect, and to load weights */

struct clime_model;
struct clime_weight_parts;
struct clime_links;
struct clime_group_children;

struct clime_followers {
    struct clime_group *group;
    struct clime_group_children *children;
    struct clime_links *links;
    struct clime_model *model;  /* the leader's */
    struct clime_shard *shards; /* [world] each rank's share of it */
    struct clime_buf wire;
    int world;
    int64_t limit_us; /* timeout of each wait for a follower */
};

/* Starts ranks 1..world-1: this program's file with argv's options (argv[0] is ignored), on the GPUs not in
 * gpus_left_out (bit 0 = the leader's). Returns when all have connected. */
enum clime_err clime_followers_start(int world, uint64_t gpus_left_out, char *const *argv, int64_t limit_us,
                                     struct clime_followers **out, struct clime_error *e);
enum clime_err clime_followers_plan(struct clime_followers *f, const struct clime_sched_options *sched, int max_len,
                                    const int *graph_bs, int n_graph_bs, struct clime_error *e);
/* Opens the links. m is loaded on every rank. */
enum clime_err clime_followers_link(struct clime_followers *f, struct clime_model *m, struct clime_error *e);
void clime_followers_close(struct clime_followers *f); /* before the model; NULL is fine */

/* On any rank: checks that all ranks have the same kind of device and the same model; opens the group's links for m. */
enum clime_err clime_follow_link(struct clime_group *g, struct clime_model *m, struct clime_links **out,
                                 struct clime_error *e);

/* Engine thread. The model keeps failures. */
void clime_followers_rows(struct clime_followers *f, const struct clime_step_shape *shape, const int32_t *words,
                          const struct clime_page_copy *copies, int n_copies);
void clime_followers_logits(struct clime_followers *f, const int32_t *rows, int n);

/* CLIME_OK while every follower is alive. Does not wait. */
enum clime_err clime_followers_check(struct clime_followers *f, struct clime_error *e);

/* New weights on all ranks, from one full copy in host or device memory. CLIME_ERR_LIMIT: a rank is out of memory;
 * nothing has changed. */
enum clime_err clime_followers_update(struct clime_followers *f, const void *flat, bool host, struct clime_error *e);

/* Makes each rank use a trainer rank's weights in place. CLIME_ERR_INPUT: a rank cannot map them; nothing has
 * changed. */
enum clime_err clime_followers_map(struct clime_followers *f, const uint8_t handles[][CLIME_SHARE_BYTES],
                                   struct clime_error *e);

/* Each rank copies its share of weights whose parts lie in other processes' memory. Used on all ranks if their sum
 * matches the checksum, otherwise on none. CLIME_ERR_INPUT, CLIME_ERR_LIMIT as clime_model_stage: nothing has
 * changed. */
enum clime_err clime_followers_stage(struct clime_followers *f, const struct clime_weight_parts *p,
                                     struct clime_error *e);

/* Copies bytes [offset, offset + n) of the whole model's weights from all ranks to host memory. CLIME_ERR_INTERNAL: a
 * replicated weight differs between ranks. */
enum clime_err clime_followers_read(struct clime_followers *f, int64_t offset, int64_t n, void *h_out,
                                    struct clime_error *e);

/* GIVE_BACK or TAKE_BACK on all followers; adds their bytes to *kv and *weights. */
enum clime_err clime_followers_memory(struct clime_followers *f, enum clime_follow_word word, unsigned tags, size_t *kv,
                                      size_t *weights, struct clime_error *e);

#endif
