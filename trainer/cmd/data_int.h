/* Options of clime-train data, shared by its files: data.c (main, fields, conversion), data_prompts.c (rendering and
 * lengths) and data_from_run.c. Main thread. */
#ifndef CLIME_TRAINER_CMD_DATA_INT_H
#define CLIME_TRAINER_CMD_DATA_INT_H

#include <float.h>

#include "common/options/options.h"
#include "trainer/data/look.h"
#include "trainer/data/overlap.h"
#include "trainer/data/sft_data.h"
#include "trainer/reward/rewarder.h"

#define CLIME_DATA_FILES 64

struct clime_data_command {
    const char *files[CLIME_DATA_FILES]; /* [n_files] sources */
    int n_files;
    const char *hf_checkpoint, *output, *from_run;
    struct clime_sft_data_options set; /* keys and template; sources = files */
    bool sft;
    int64_t max_prompt_len, max_response_len, print, n_gram;
    struct clime_opt_list against; /* sources */
    struct clime_rewarder_options reward;
    double rm_timeout;
    bool best, has_min_reward, has_input_key;
    double min_reward;
};

/* data_prompts.c: writes what training would see: lengths, dropped rows, rendered samples, labels against the reward.
 * *fits: false when no label gets a reward. */
enum clime_err clime_data_prompts(const struct clime_data_command *c, struct clime_buf *out, bool *fits,
                                  struct clime_error *e);

/* data_from_run.c: writes a run's answers to c->output, as rows for sft with --ids-key. */
enum clime_err clime_data_from_run(const struct clime_data_command *c, struct clime_error *e);

#endif
