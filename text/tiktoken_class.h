/* The Python class TikTokenTokenizer of Moonlight's and Kimi K2's folders: its settings, and a check that a folder has
 * it.
 *
 * Such a folder has tiktoken.model (bytes and ranks) but not the split pattern, the number of special tokens, or the
 * conversion of tools for the chat template: these are in its tokenization_moonshot.py or tokenization_kimi.py, which
 * is read here and never run. Pure functions over files; any thread.
 */
#ifndef CLIME_TEXT_TIKTOKEN_CLASS_H
#define CLIME_TEXT_TIKTOKEN_CLASS_H

#include "common/buf.h"
#include "common/err.h"

struct cJSON;

void clime_tiktoken_pattern(struct clime_buf *out); /* appends pat_str, in Oniguruma's syntax */

/* Differences between the published classes. */
struct clime_tiktoken_class {
    int n_special;    /* special tokens after the ranks */
    bool sorts_tools; /* apply_chat_template sorts the keys of tools at every depth */
};

/* config: dir's tokenizer_config.json. CLIME_ERR_INPUT names the unknown class or the difference in the Python file. */
enum clime_err clime_tiktoken_read_class(const char *dir, const struct cJSON *config, struct clime_tiktoken_class *c,
                                         struct clime_error *e);

#endif
