/* Chat history matching: which turn of a session a client's messages extend, and the tokens that follow it.
 *
 * A history is recognised by digests over its messages (and tools), chained from message to message. Messages are
 * compared after the changes every server makes before rendering (text/chat/prepare.h) and by content: member order,
 * white space, the spelling of call arguments, and fields that libraries add to an answer are ignored. A repeated
 * answer thus matches whichever library wrote it. An unrecognised history is rendered anew and begins a branch; so does
 * one that the chat template renders differently when messages follow (dropped thinking). */
#ifndef CLIME_TRAINER_ENV_HISTORY_H
#define CLIME_TRAINER_ENV_HISTORY_H

#include "text/chat/chat_template.h"
#include "trainer/env/session.h"

struct clime_history {      /* zero-initialise */
    int parent;             /* -1: none */
    struct clime_ids given; /* tokens between the parent's path and the next answer */
    enum clime_turn_kind kind;
    uint8_t (*keys)[CLIME_SESSION_KEY]; /* [n_keys] digests: tools, then up to each message */
    int n_keys;
    struct clime_str tools; /* the tools it was rendered with; the caller's */
};
void clime_history_free(struct clime_history *h);

/* messages: JSON array; tools: JSON array or ptr NULL. CLIME_ERR_INPUT: refused by clime_chat_prepared, or a template
 * error. Needs up to 1 MiB of stack. */
enum clime_err clime_history_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                  const struct clime_session *s, struct clime_str messages, struct clime_str tools,
                                  struct clime_history *h, struct clime_error *e);

/* Records the turn's answer to the history; message: the assistant's, as sent to the client. */
void clime_history_answered(const struct clime_history *h, const struct clime_chat_template *t,
                            struct clime_str message, struct clime_session *s, int turn);

#endif
