/* Prompts: a JSONL file, rendered and tokenised once at the start, handed out by number for ever.
 *
 * Nouns
 *   source   "path" or "path@[a:b]" (Python's slice over the lines, negative numbers count from the end).
 *   prompt   one line: its text after the chat template, its ids, label and metadata as JSON text.
 *   group    the number of a prompt in a run, 0, 1, 2, ...; group g is in epoch g / n_prompts. With shuffle every epoch
 *            has its own order, a function of (seed, epoch) alone; so a group's prompt needs no cursor to be found.
 *
 * A dataset is read-only after loading but for the cached order; main thread.
 */
#ifndef CLIME_TRAINER_DATA_DATA_H
#define CLIME_TRAINER_DATA_DATA_H

#include <stdint.h>

#include "common/err.h"
#include "text/tokenizer.h"

struct clime_data_options {                                      /* names are slime's options */
    const char *prompt_data;                                     /* source */
    const char *input_key, *label_key, *metadata_key, *tool_key; /* label_key NULL = no labels */
    bool apply_chat_template;
    const char *apply_chat_template_kwargs; /* JSON object or NULL */
    int max_prompt_len;                     /* longer prompts are left out and counted; 0 = no limit */
    bool shuffle;
    uint64_t seed; /* of the shuffle */
};

struct clime_prompt {
    int64_t line;           /* of the file, from 1 */
    char *text;             /* after the chat template */
    char *input;            /* the line's own value under the input key, JSON */
    int32_t *ids;           /* [n_ids] */
    int32_t n_ids;          /* > 0 */
    char *label, *metadata; /* JSON value, JSON object; NULL = none */
};

struct clime_dataset {
    struct clime_prompt *prompts; /* [n] in the file's order */
    int n, size;
    int n_too_long; /* left out */
    bool shuffle;
    uint64_t seed;
    int64_t epoch_of_order; /* the epoch that order[] holds; -1 = none */
    int32_t *order;         /* [n] */
};

/* Reads, renders and tokenises. Errors name file and line: CLIME_ERR_NOT_FOUND, CLIME_ERR_INPUT (broken line, missing
 * key, no template, nothing left), CLIME_ERR_LIMIT. */
enum clime_err clime_dataset_load(const struct clime_data_options *o, const struct clime_tokenizer *t,
                                  struct clime_dataset *out, struct clime_error *e);
void clime_dataset_free(struct clime_dataset *d);

/* Of all that the prompts say: text, ids, labels, metadata. Where they come from has no part. */
uint64_t clime_dataset_checksum(const struct clime_dataset *d);

/* The prompt of a group, and the epoch it belongs to (may be NULL). Valid until the dataset is freed. */
const struct clime_prompt *clime_dataset_at(struct clime_dataset *d, int64_t group, int64_t *epoch);

/* Calls fn for each line of a source that holds more than white space, in order, with its number in the file from 1;
 * stops at the first error, which fn returns. Errors of its own as clime_dataset_load's. */
typedef enum clime_err clime_data_line_fn(void *arg, int64_t line, struct clime_str json, struct clime_error *e);
enum clime_err clime_data_lines(const char *source, clime_data_line_fn *fn, void *arg, struct clime_error *e);

/* "path@[a:b]" -> path (the caller frees it) and the slice over n lines, known after reading: first <= i < last. */
enum clime_err clime_data_source_parse(const char *source, char **path, char slice[64], struct clime_error *e);
enum clime_err clime_data_slice(const char *slice, int64_t n, int64_t *first, int64_t *last, struct clime_error *e);

#endif
