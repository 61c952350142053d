/* Samples of a fine-tuning run, built once at its start from prompt and response, whole conversations, or token ids. */
#ifndef CLIME_TRAINER_DATA_SFT_DATA_H
#define CLIME_TRAINER_DATA_SFT_DATA_H

#include "trainer/data/data.h"
#include "trainer/sample/sample.h"

struct clime_sft_data_options {
    struct clime_data_options data;
    const char *messages_key; /* member with a conversation; NULL = prompt and response under data's keys */
    const char *ids_key;      /* member with a sample's token ids, "mask" beside it; NULL = text */
};

struct clime_sft_set {
    struct clime_sample **samples;  /* [n] in the order of sources and files; group = index */
    int n, n_too_long, n_untrained; /* dropped: over the limit; without a trained token */
    int longest;                    /* tokens */
    struct clime_lost_rows lost;
    int n_parts;
    struct clime_mix_part *parts; /* [n_parts] the samples of each source */
};

/* Builds the set. dir: the checkpoint with tokenizer and template; max_len: tokens of a sample. Errors name file and
 * line. */
enum clime_err clime_sft_set_load(const struct clime_sft_data_options *o, const char *dir, int max_len,
                                  struct clime_sft_set *set, struct clime_error *e);
void clime_sft_set_free(struct clime_sft_set *set);

/* For loaders of other samples. open: adds an empty part per source, with its weight. check: sets the parts' ranges
 * when all samples are loaded; CLIME_ERR_INPUT: a source has nothing to train on, or bad weights (trainer/data/mix.h).
 */
enum clime_err clime_sft_set_open(struct clime_sft_set *set, const struct clime_data_options *o, struct clime_error *e);
enum clime_err clime_sft_set_check(struct clime_sft_set *set, const struct clime_data_options *o,
                                   struct clime_error *e);

#endif
