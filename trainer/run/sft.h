/* The loop of clime-train sft and dpo: samples with answers to steps of cross-entropy, pairs to steps of a preference
 * loss.
 *
 * A step is a function of the weights, the data, the seed and its number, so a run folder needs no samples: its ledger
 * has what each step came to, and a start goes on from the newest sound checkpoint. Steps that run again must have the
 * recorded bits. Main thread.
 */
#ifndef CLIME_TRAINER_RUN_SFT_H
#define CLIME_TRAINER_RUN_SFT_H

#include "trainer/data/sft_data.h"
#include "trainer/run/run.h"

struct clime_sft {
    struct clime_rl rl; /* run folder, ledger, learner, checkpoints; o.run NULL = no folder, nothing is recorded */
    struct clime_sft_set set; /* owned */
    int64_t num_epoch, seed, max_tokens;
    int n_members;         /* samples of a unit, which is drawn and packed whole: 1, or 2 of a pair */
    int global_batch_size; /* units; at most those of the set */
    double target_loss;    /* 0 = all passes */
    bool shuffle;
    bool evaluates;      /* rl.o has an evaluation's options; o.eval_interval counts steps */
    const char *metrics; /* file for a line a step; NULL = none */
};

/* Opens the run folder, where there is one, the servers of an evaluation, and the learner, in the order in which faults
 * are cheap to find. defaults: rl.o.options_json of a command without options. */
enum clime_err clime_sft_open(struct clime_sft *s, const char *defaults, struct clime_error *e);
/* With the learner open: from where the record ends to the end. Fails when no step changed the weights. */
enum clime_err clime_sft_train(struct clime_sft *s, struct clime_error *e);

#endif
