/* Cache of compiled grammars, keyed by source: the requests of a rollout share a few.
 *
 * One lock; any thread. Compiling needs a deep stack: a text thread. The vocabulary's trie is built at first use.
 */
#ifndef CLIME_SERVER_JOB_GRAMMAR_CACHE_H
#define CLIME_SERVER_JOB_GRAMMAR_CACHE_H

#include "text/grammar/grammar.h"

struct clime_grammar_cache;

/* V: the model's vocabulary size. eos[n_eos], borrowed: the ids that end a sequence. */
struct clime_grammar_cache *clime_grammar_cache_new(const struct clime_tokenizer *t, int V, const int32_t *eos,
                                                    int n_eos);
void clime_grammar_cache_free(struct clime_grammar_cache *c); /* NULL is fine; after all grammar states */

/* Finds or compiles; the caller gets a reference. CLIME_ERR_INPUT. */
enum clime_err clime_grammar_cache_get(struct clime_grammar_cache *c, const struct clime_grammar_source *s,
                                       struct clime_grammar **out, struct clime_error *e);

#endif
