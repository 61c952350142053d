/* The tokenizer and the chat template that rows of data go through: of the checkpoint that is trained or evaluated. */
#ifndef CLIME_TRAINER_DATA_RENDER_H
#define CLIME_TRAINER_DATA_RENDER_H

#include "text/chat/chat_template.h"

/* Loads the tokenizer of a model that is trained or evaluated on texts: one with a token that the model has no row for
 * is an error where it is encoded, and so is a token that ends a turn here. Errors: clime_tokenizer_load's,
 * clime_config_load's, CLIME_ERR_INPUT. */
enum clime_err clime_data_tokenizer(const char *dir, struct clime_tokenizer **out, struct clime_error *e);

/* Opens the checkpoint's template for rows. kwargs: of --apply-chat-template-kwargs, or NULL; borrowed.
 * CLIME_ERR_INPUT: there is none, or one that does not compile. */
enum clime_err clime_data_template(const struct clime_tokenizer *tok, const char *kwargs, struct clime_chat_template *t,
                                   struct clime_error *e);

#endif
