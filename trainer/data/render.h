/* The tokenizer and the chat template that rows of data go through: of the checkpoint that is trained or evaluated. */
#ifndef CLIME_TRAINER_DATA_RENDER_H
#define CLIME_TRAINER_DATA_RENDER_H

#include "text/chat/chat_template.h"
#include "text/chat/prepare.h"

/* Rows of which the template does not show a part, by the bits of enum clime_chat_lost; zero = none. */
struct clime_lost_rows {
    int n[CLIME_CHAT_LOSSES];
};

/* Counts a row with what was added to *lost since the row before, and clears that. */
void clime_lost_rows_count(struct clime_lost_rows *l, unsigned *lost);
/* "tools: 3, an assistant's reasoning: 2", to be freed; NULL: nothing is lost. */
char *clime_lost_rows_text(const struct clime_lost_rows *l);
/* A warning where something is lost. of: "", or which rows these are. */
void clime_lost_rows_warn(const struct clime_lost_rows *l, const char *of);

/* Loads the tokenizer of a model that is trained or evaluated on texts: one with a token that the model has no row for
 * is an error where it is encoded, and so is a token that ends a turn here. Errors: clime_tokenizer_load's,
 * clime_config_load's, CLIME_ERR_INPUT. */
enum clime_err clime_data_tokenizer(const char *dir, struct clime_tokenizer **out, struct clime_error *e);

/* Opens the checkpoint's template for rows. kwargs: of --apply-chat-template-kwargs, or NULL; borrowed.
 * CLIME_ERR_INPUT: there is none, or one that does not compile. */
enum clime_err clime_data_template(const struct clime_tokenizer *tok, const char *kwargs, struct clime_chat_template *t,
                                   struct clime_error *e);

#endif
