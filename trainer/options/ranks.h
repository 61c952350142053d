/* Rank options, shared by clime-train rl, sft and dpo. Called by their parsers; pure. */
#ifndef CLIME_TRAINER_OPTIONS_RANKS_H
#define CLIME_TRAINER_OPTIONS_RANKS_H

#include "common/options/options.h"
#include "trainer/learn/learner.h"

#define CLIME_RANK_ROWS 12

struct clime_rank_options {
    int64_t nodes, per_node; /* ranks */
    int64_t lanes;           /* after derive: the effective number, which affects the weights */
    int64_t cp_size;         /* cuts of a micro-batch, which affect the weights as lanes do */
    int64_t tp_size, pp_size, ep_size;
    int64_t base_gpu;
    int64_t elastic;   /* minimum ranks to continue with; 0 = all */
    int transport;     /* enum clime_links_way */
    int shard_weights; /* enum clime_shard_weights */
    double timeout_minutes;
    bool per_node_given, lanes_given;
};

/* Rows for the program's table; returns their number. */
int clime_rank_rows(struct clime_rank_options *r, struct clime_opt *t);

/* Fills the learner's options. l->place is a launcher's, or zero. CLIME_ERR_INPUT: contradictory options. */
enum clime_err clime_rank_derive(struct clime_rank_options *r, struct clime_learner_options *l, struct clime_error *e);

/* True when the option affects the weights. */
bool clime_rank_decides(const char *name);

#endif
