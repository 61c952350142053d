/* A policy folder's properties besides its weights: the tokens that end a sequence, and everything that server and
 * trainer must agree on, as facts. Pure; at start. */
#ifndef CLIME_MODEL_POLICY_H
#define CLIME_MODEL_POLICY_H

#include "model/config/config.h"
#include "text/tokenizer.h"

/* The ids that end a sequence: the tokenizer's and the configuration's, without repeats. *n: how many. The caller frees
 * them. */
int32_t *clime_policy_stop_ids(const struct clime_config *c, const struct clime_tokenizer *t, int *n);

/* "stop-token-ids" in ascending order, the tokenizer of dir (clime_tokenizer_facts), the keys of config.json that
 * affect results, "rotary-table". CLIME_ERR_IO: a file of dir cannot be read. */
enum clime_err clime_policy_facts(const struct clime_config *c, const struct clime_tokenizer *t, const char *dir,
                                  struct clime_facts *out, struct clime_error *e);

#endif
