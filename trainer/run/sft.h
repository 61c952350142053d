/* The loop of clime-train sft and dpo: cross-entropy steps on samples with answers, preference-loss steps on pairs.
 *
 * A step is a function of the weights, the data, the seed and its number, so the run folder stores no samples: the
 * ledger has each step's result, and a restart continues from the newest sound checkpoint. Repeated steps must have the
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
    int n_members;         /* samples in a unit, which is drawn and packed whole: 1, or 2 for a pair */
    int global_batch_size; /* units; at most the size of the set */
    double target_loss;    /* stop at this loss; 0 = run all passes */
    bool shuffle;
    bool evaluates;      /* rl.o has evaluation options; o.eval_interval counts steps */
    const char *metrics; /* file with one line per step; NULL = none */
};

/* Opens the run folder (if any), the evaluation's servers and the learner; cheap checks come first. defaults:
 * rl.o.options_json of a command without options. */
enum clime_err clime_sft_open(struct clime_sft *s, const char *defaults, struct clime_error *e);
/* Trains from the end of the record to the end of the run. Needs the open learner. Fails if no step changed the
 * weights. */
enum clime_err clime_sft_train(struct clime_sft *s, struct clime_error *e);

#endif
