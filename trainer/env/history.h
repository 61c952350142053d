/* A chat client's messages against a session: which turn they go on from, and the tokens that follow it.
 *
 * A history is recognised by digests over its messages (and the tools), chained from message to message. Messages are
 * compared after the changes that every server makes before rendering (text/chat/prepare.h) and by what they say: the
 * order of members and white space do not count, nor how the arguments of a call are spelt, nor what libraries put
 * around an answer. So an answer that a client repeats is the one it was given, whichever library wrote it. What is not
 * recognised is rendered afresh and begins a branch; so does a history that the chat template renders otherwise once
 * more messages follow (thinking that it drops). */
#ifndef CLIME_TRAINER_ENV_HISTORY_H
#define CLIME_TRAINER_ENV_HISTORY_H

#include "text/chat/chat_template.h"
#include "trainer/env/session.h"

struct clime_history {      /* zero-initialise */
    int parent;             /* -1: none */
    struct clime_ids given; /* the tokens between the parent's path and the next answer */
    enum clime_turn_kind kind;
    uint8_t (*keys)[CLIME_SESSION_KEY]; /* [n_keys] of the tools, then up to each message */
    int n_keys;
    struct clime_str tools; /* those that it was rendered with; the caller's */
};
void clime_history_free(struct clime_history *h);

/* messages: JSON array; tools: JSON array or ptr NULL. CLIME_ERR_INPUT: what clime_chat_prepared refuses, the
 * template's error. Needs up to 1 MiB of stack. */
enum clime_err clime_history_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                  const struct clime_session *s, struct clime_str messages, struct clime_str tools,
                                  struct clime_history *h, struct clime_error *e);

/* The turn has answered the history: message is the assistant's, as the client is given it. */
void clime_history_answered(const struct clime_history *h, const struct clime_chat_template *t,
                            struct clime_str message, struct clime_session *s, int turn);

#endif
