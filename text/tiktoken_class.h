/* What the Python class TikTokenTokenizer of Moonlight's and Kimi K2's folders fixes, and whether a folder's is that
 * one.
 *
 * Such a folder holds tiktoken.model (bytes and ranks) but neither the pattern that cuts text, nor the number of
 * special tokens, nor what becomes of a request's tools before the chat template sees them: these stand in its
 * tokenization_moonshot.py or tokenization_kimi.py, which is looked at here and never run. Pure functions over files;
 * any thread.
 */
#ifndef CLIME_TEXT_TIKTOKEN_CLASS_H
#define CLIME_TEXT_TIKTOKEN_CLASS_H

#include "common/buf.h"
#include "common/err.h"

struct cJSON;

void clime_tiktoken_pattern(struct clime_buf *out); /* appends pat_str, in Oniguruma's syntax */

/* In what the published classes differ. */
struct clime_tiktoken_class {
    int n_special;    /* how many ids behind the ranks are special tokens */
    bool sorts_tools; /* apply_chat_template gives the template tools with sorted keys, at every depth */
};

/* config: dir's tokenizer_config.json. CLIME_ERR_INPUT names the class that is not known, or what is another in the
 * Python file. */
enum clime_err clime_tiktoken_read_class(const char *dir, const struct cJSON *config, struct clime_tiktoken_class *c,
                                         struct clime_error *e);

#endif
