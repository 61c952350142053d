/* Prompt dataset: rows of files, rendered and tokenised once at the start, indexed by group number.
 *
 * Nouns
 *   source   a file, a slice of it, its weight among others (trainer/data/source.h).
 *   prompt   one row: its text after the chat template, its ids, label and metadata as JSON text.
 *   group    the number of a prompt in a run, 0, 1, 2, ...; group g is in epoch g / n_prompts. With shuffle every epoch
 *            has its own order, a function of (seed, epoch) alone (trainer/data/mix.h): no cursor is stored.
 *
 * Read-only after loading except for the cached order; main thread. */
#ifndef CLIME_TRAINER_DATA_DATA_H
#define CLIME_TRAINER_DATA_DATA_H

#include <stdint.h>

#include "common/err.h"
#include "text/tokenizer.h"
#include "trainer/data/mix.h"
#include "trainer/data/render.h"
#include "trainer/data/source.h"

struct clime_data_options {     /* named as in slime */
    const char *const *sources; /* [n_sources] --prompt-data */
    int n_sources;
    const char *input_key, *label_key, *metadata_key, *tool_key; /* label_key NULL = no labels */
    const char *metadata_overrides; /* JSON object merged over every row's metadata, or NULL */
    bool apply_chat_template;
    const char *apply_chat_template_kwargs; /* JSON object or NULL */
    int max_prompt_len;                     /* longer prompts are dropped and counted; 0 = no limit */
    bool shuffle;
    uint64_t seed; /* of the shuffle */
};

struct clime_prompt {
    int source;             /* index among the options' sources */
    int64_t line;           /* in its file, from 1 */
    char *text;             /* after the chat template */
    char *input;            /* the row's value under the input key, JSON */
    int32_t *ids;           /* [n_ids] */
    int32_t n_ids;          /* > 0 */
    char *label, *metadata; /* JSON value, JSON object; NULL = none */
};

struct clime_dataset {
    struct clime_prompt *prompts; /* [n] in the order of sources and files */
    int n, size;
    int n_too_long; /* dropped */
    struct clime_lost_rows lost;
    int n_parts;
    struct clime_mix_part *parts; /* [n_parts] the prompts of each source */
    char **names;                 /* [n_parts] the sources' short names */
    bool shuffle;
    uint64_t seed;
    int64_t epoch_of_order; /* the epoch of order[]; -1 = none */
    int32_t *order;         /* [n] */
};

/* Reads, renders and tokenises. Errors name file and line: CLIME_ERR_NOT_FOUND, CLIME_ERR_INPUT (broken line, missing
 * key, no template, nothing left), CLIME_ERR_LIMIT. */
enum clime_err clime_dataset_load(const struct clime_data_options *o, const struct clime_tokenizer *t,
                                  struct clime_dataset *out, struct clime_error *e);
void clime_dataset_free(struct clime_dataset *d);

/* Checksum of the prompts' contents (text, ids, labels, metadata) and the sources' weights, but not their paths. */
uint64_t clime_dataset_checksum(const struct clime_dataset *d);

/* The prompt of a group, and its epoch (may be NULL). Valid until the dataset is freed. */
const struct clime_prompt *clime_dataset_at(struct clime_dataset *d, int64_t group, int64_t *epoch);

#endif
