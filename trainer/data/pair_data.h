/* Preference pairs for clime-train dpo: a chosen and a rejected answer per row.
 *
 * A row has a prompt and two answers, each a text or a list of messages:
 *   texts     prompt, chosen, rejected. With a chat template the prompt is one user message and an answer the
 *             assistant's; without, an answer is tokenised alone and the end-of-turn token follows.
 *   messages  the answers' messages follow the prompt's; or both answers are whole conversations, with no prompt or one
 *             inside their common beginning (UltraFeedback). Their common beginning is context; in the rest every
 *             assistant message is trained (trainer/data/conversation.h). Needs a chat template. */
#ifndef CLIME_TRAINER_DATA_PAIR_DATA_H
#define CLIME_TRAINER_DATA_PAIR_DATA_H

#include "trainer/data/sft_data.h"

struct clime_pair_data_options {
    struct clime_data_options data; /* input_key: the prompt's */
    const char *chosen_key, *rejected_key;
};

/* Fills set: samples[2i] is the chosen answer of pair i, samples[2i + 1] the rejected one: group i, members 0 and 1.
 * Parts, n_too_long and n_untrained count pairs; longest is of both answers of a pair together, as they share a
 * micro-batch. max_len: tokens of one answer with its prompt. Errors name source and row. */
enum clime_err clime_pair_set_load(const struct clime_pair_data_options *o, const char *dir, int max_len,
                                   struct clime_sft_set *set, struct clime_error *e);

#endif
