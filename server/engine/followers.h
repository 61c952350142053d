/* A server over several devices: rank 0, which is the server, tells the other ranks what to do.
 *
 * A follower is a process with its share of the model, the same runner and no scheduler: it replays each message of the
 * leader, so both run the same rows over the same pages. What it computes comes to the leader by the links, inside the
 * forward pass (model/ranks.h). The leader alone samples.
 *
 * The main thread starts and links them; then they are the engine thread's. A follower that is lost or late ends the
 * engine: the first failure is kept by the model (clime_model_ranks_check), and nothing is told any more.
 */
#ifndef CLIME_SERVER_ENGINE_FOLLOWERS_H
#define CLIME_SERVER_ENGINE_FOLLOWERS_H

#include "common/group/group.h"
#include "server/engine/step_arrays.h"
#include "server/engine/step_graphs.h"
#include "server/schedule/scheduler.h"

enum clime_follow_word {
    CLIME_FOLLOW_ROWS,    /* run these rows; their arrays follow, then copies of pages */
    CLIME_FOLLOW_LOGITS,  /* and the head over some of them, whose numbers follow */
    CLIME_FOLLOW_OWN,     /* have memory for weights. Answered */
    CLIME_FOLLOW_WEIGHTS, /* take your share of new ones */
    CLIME_FOLLOW_OPEN,    /* map the share that another process has for you; all ranks' handles follow. Answered */
    CLIME_FOLLOW_STAGE,   /* copy your share of weights that lie in parts elsewhere; handles and ranges follow. Answered
                           */
    CLIME_FOLLOW_USE,     /* compute with what was mapped or copied from now on; */
    CLIME_FOLLOW_LET_GO,  /* or not */
    CLIME_FOLLOW_GIVE_BACK, /* memory by tags. Answered */
    CLIME_FOLLOW_TAKE_BACK, /* the same */
    CLIME_FOLLOW_READ,      /* say what your share of some weights is. Answered with the bytes alone */
    CLIME_FOLLOW_END
};

struct clime_follow { /* what a message begins with; all are the same program on one host */
    enum clime_follow_word word;
    struct clime_step_shape shape;
    int n_copies, n_rows;
    unsigned tags;   /* enum clime_memory_tag */
    int64_t from, n; /* elements of the whole model's buffer, to be read */
    int n_handles, n_ranges;
};

struct clime_follow_answer {
    size_t kv, weights; /* bytes given back or taken */
    uint64_t sum;       /* of what was staged */
    struct clime_error error;
};

struct clime_follow_plan { /* what the leader has decided, told once, before weights are loaded */
    struct clime_sched_options sched;
    int max_len;
    int graph_bs[CLIME_GRAPH_MAX_SIZES], n_graph_bs; /* sizes of recorded steps */
    int64_t limit_us;
};

#define CLIME_FOLLOW_WORDS ((size_t)1 << 28)                                          /* of a step's arrays, at most */
#define CLIME_FOLLOW_BYTES (CLIME_FOLLOW_WORDS * sizeof(int32_t) + ((size_t)1 << 20)) /* of a message: copies too */

#define CLIME_FOLLOW_START_US ((int64_t)600000000) /* for meeting, and for ranks that load their weights */

struct clime_model;
struct clime_weight_parts;
struct clime_links;
struct clime_group_children;

struct clime_followers {
    struct clime_group *group;
    struct clime_group_children *children;
    struct clime_links *links;
    struct clime_model *model;  /* the leader's */
    struct clime_shard *shards; /* [world] who has what of it */
    struct clime_buf wire;
    int world;
    int64_t limit_us; /* of every wait for one that has something to do */
};

/* Starts ranks 1..world-1: this program's file with argv's options (argv[0] is not read), on GPUs that gpus_left_out,
 * counted from the first, has not. Returns when all have come. */
enum clime_err clime_followers_start(int world, uint64_t gpus_left_out, char *const *argv, int64_t limit_us,
                                     struct clime_followers **out, struct clime_error *e);
enum clime_err clime_followers_plan(struct clime_followers *f, const struct clime_sched_options *sched, int max_len,
                                    const int *graph_bs, int n_graph_bs, struct clime_error *e);
/* m is loaded here and there: opens the links. */
enum clime_err clime_followers_link(struct clime_followers *f, struct clime_model *m, struct clime_error *e);
void clime_followers_close(struct clime_followers *f); /* before the model; NULL is fine */

/* On any rank: all have one kind of device and one model; the links of the group, for m. */
enum clime_err clime_follow_link(struct clime_group *g, struct clime_model *m, struct clime_links **out,
                                 struct clime_error *e);

/* Engine thread. Failures are kept by the model. */
void clime_followers_rows(struct clime_followers *f, const struct clime_step_shape *shape, const int32_t *words,
                          const struct clime_page_copy *copies, int n_copies);
void clime_followers_logits(struct clime_followers *f, const int32_t *rows, int n);

/* CLIME_OK while all are there. Does not wait. */
enum clime_err clime_followers_check(struct clime_followers *f, struct clime_error *e);

/* New weights on all ranks, from the whole of them in host or device memory. CLIME_ERR_LIMIT: a rank has no memory,
 * nothing has changed. */
enum clime_err clime_followers_update(struct clime_followers *f, const void *flat, bool host, struct clime_error *e);

/* From now on each rank computes with the memory of a trainer's rank, in place. CLIME_ERR_INPUT: a rank cannot map it,
 * nothing has changed. */
enum clime_err clime_followers_map(struct clime_followers *f, const uint8_t handles[][CLIME_SHARE_BYTES],
                                   struct clime_error *e);

/* Each rank copies its share of weights that lie in parts in other processes' memory; in force on all ranks when their
 * sum is the checksum, on none else. CLIME_ERR_INPUT, CLIME_ERR_LIMIT as clime_model_stage: nothing has changed. */
enum clime_err clime_followers_stage(struct clime_followers *f, const struct clime_weight_parts *p,
                                     struct clime_error *e);

/* n elements of the whole model's weights, from offset on, from all ranks into host memory. CLIME_ERR_INTERNAL: what
 * several ranks have is not the same on all. */
enum clime_err clime_followers_read(struct clime_followers *f, int64_t offset, int64_t n, void *h_out,
                                    struct clime_error *e);

/* GIVE_BACK or TAKE_BACK on all followers; their bytes are added to *kv and *weights. */
enum clime_err clime_followers_memory(struct clime_followers *f, enum clime_follow_word word, unsigned tags, size_t *kv,
                                      size_t *weights, struct clime_error *e);

#endif
