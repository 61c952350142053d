/* Rendering of data rows: the tokenizer and chat template of the checkpoint that is trained or evaluated. */
#ifndef CLIME_TRAINER_DATA_RENDER_H
#define CLIME_TRAINER_DATA_RENDER_H

#include "text/chat/chat_template.h"
#include "text/chat/prepare.h"

/* Counts of rows whose rendering drops a part, by bit of enum clime_chat_lost; zero = none. */
struct clime_lost_rows {
    int n[CLIME_CHAT_LOSSES];
};

/* Counts a row by the bits set in *lost since the previous row, and clears them. */
void clime_lost_rows_count(struct clime_lost_rows *l, unsigned *lost);
/* "tools: 3, an assistant's reasoning: 2", which the caller frees; NULL: none. */
char *clime_lost_rows_text(const struct clime_lost_rows *l);
/* Warns if anything is lost. of: "", or the name of these rows. */
void clime_lost_rows_warn(const struct clime_lost_rows *l, const char *of);

/* Loads the tokenizer of a model that is trained or evaluated on text. A token without a row in the model is an error
 * when encoded; an end-of-turn token already here. Errors: clime_tokenizer_load's, clime_config_load's,
 * CLIME_ERR_INPUT. */
enum clime_err clime_data_tokenizer(const char *dir, struct clime_tokenizer **out, struct clime_error *e);

/* Opens the checkpoint's template for rows. kwargs: --apply-chat-template-kwargs or NULL; borrowed. CLIME_ERR_INPUT:
 * missing, or it does not compile. */
enum clime_err clime_data_template(const struct clime_tokenizer *tok, const char *kwargs, struct clime_chat_template *t,
                                   struct clime_error *e);

#endif
