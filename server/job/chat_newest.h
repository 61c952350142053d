/* Truncates a conversation that is too long to its newest part: `truncation: auto` of Responses. Runs on text threads.
 *
 * Drops whole rounds from the beginning (a round is a message with the tool results after it), so that no result loses
 * its call. Leading system messages stay, and so does the last round (everything from the last user's on if the
 * template needs a user). Drops the fewest rounds that fit, or a few more if the template rejects the round that would
 * be first.
 */
#ifndef CLIME_SERVER_JOB_CHAT_NEWEST_H
#define CLIME_SERVER_JOB_CHAT_NEWEST_H

#include "text/chat/chat_template.h"

/* Writes the prompt of the newest part, at most `most` tokens, or of the last round alone up to `limit`, to *ids, empty
 * before. CLIME_ERR_LIMIT: even that does not fit, or the template rejects every part that short. */
enum clime_err clime_chat_newest(const struct clime_chat_template *t, const struct clime_tokenizer *tok,
                                 struct clime_tok_scratch *scratch, const struct clime_chat_prompt *p, unsigned flags,
                                 size_t most, size_t limit, struct clime_ids *ids, struct clime_error *e);

#endif
