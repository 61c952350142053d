/* A chat client's messages against a session: which turn they go on from, and the tokens that follow it.
 *
 * A history is recognised by a digest over its messages (and the tools), chained from message to message. Messages are
 * compared after the changes that every server makes before rendering (text/template/chat.h) and without regard to the
 * order of members or to white space: so an answer that a client repeats is the one it was given, whichever library
 * wrote it. What is not recognised is rendered afresh and begins a branch; so does a history that the chat template
 * renders otherwise once more messages follow (thinking that it drops). */
#ifndef CLIME_TRAINER_ENV_HISTORY_H
#define CLIME_TRAINER_ENV_HISTORY_H

#include "trainer/data/render.h"
#include "trainer/env/session.h"

/* messages: JSON array; tools: JSON array or ptr NULL. Sets *parent (-1: none) and appends to given the tokens between
 * the parent's path and the next answer; key: of all messages. CLIME_ERR_INPUT: broken messages, the template's error.
 * Needs up to 1 MiB of stack. */
enum clime_err clime_history_read(const struct clime_renderer *r, struct clime_tok_scratch *scratch,
                                  const struct clime_session *s, struct clime_str messages, struct clime_str tools,
                                  int *parent, struct clime_ids *given, uint8_t key[CLIME_SESSION_KEY],
                                  struct clime_error *e);

/* The digest of a history and the answer to it: an assistant message with this content. In and out may be the same. */
void clime_history_answer(const uint8_t key[CLIME_SESSION_KEY], struct clime_str content,
                          uint8_t out[CLIME_SESSION_KEY]);

#endif
