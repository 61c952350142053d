/* The samples of a fine-tuning run, made once when it starts: prompt and response, whole conversations, or token ids.
 */
#ifndef CLIME_TRAINER_DATA_SFT_DATA_H
#define CLIME_TRAINER_DATA_SFT_DATA_H

#include "trainer/data/data.h"
#include "trainer/sample/sample.h"

struct clime_sft_data_options {
    struct clime_data_options data;
    const char *messages_key; /* member with a conversation; NULL = prompt and response by data's keys */
    const char *ids_key;      /* member with a sample's token ids, "mask" beside it; NULL = texts */
};

struct clime_sft_set {
    struct clime_sample **samples;  /* [n] in the order of sources and files; group = index */
    int n, n_too_long, n_untrained; /* left out: longer than the limit; conversations without a trained token */
    int longest;                    /* tokens */
    int n_parts;
    struct clime_mix_part *parts; /* [n_parts] the samples of each source */
};

/* dir: the checkpoint with tokenizer and template; max_len: tokens of a sample. Errors name file and line. */
enum clime_err clime_sft_set_load(const struct clime_sft_data_options *o, const char *dir, int max_len,
                                  struct clime_sft_set *set, struct clime_error *e);
void clime_sft_set_free(struct clime_sft_set *set);

#endif
