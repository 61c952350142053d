/* The newest part of a conversation that is too long: `truncation: auto` of Responses. Runs on text threads.
 *
 * What goes are whole rounds from the beginning, a round being a message with the tools' results behind it, so that no
 * result is left without its call. System messages at the beginning stay, and so does the last round (all from the last
 * user's on where the template wants a user). As few go as leave room, or a few more where the template does not take
 * the round that would be the first.
 */
#ifndef CLIME_SERVER_JOB_CHAT_NEWEST_H
#define CLIME_SERVER_JOB_CHAT_NEWEST_H

#include "text/chat/chat_template.h"

/* The prompt of such a part, of at most `most` tokens, or of the last round alone with up to `limit`, into *ids, which
 * is empty before. CLIME_ERR_LIMIT: not even that fits, or the template takes none that begins so late. */
enum clime_err clime_chat_newest(const struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                 struct clime_tok_scratch *scratch, const struct clime_chat_prompt *p, unsigned flags,
                                 size_t most, size_t limit, struct clime_ids *ids, struct clime_error *e);

#endif
