/* The exact tokens of one session: a tree of turns.
 *
 * Nouns
 *   turn     tokens that the policy did not sample (prompt, tool output, template glue), then tokens that it did.
 *   path     the tokens of a turn and of all turns before it: what the policy had seen and said.
 *   branch   a turn that does not go on from the newest one: a client that edits, cuts or reorders its history gets a
 *            new branch and changes nothing that is there.
 * A turn's log-probabilities and versions stay with its tokens; text is never tokenised again to recover them.
 * One thread at a time; no locking.
 */
#ifndef CLIME_TRAINER_ENV_SESSION_H
#define CLIME_TRAINER_ENV_SESSION_H

#include "trainer/sample/sample.h"
#include "trainer/sample/turns.h"

#define CLIME_SESSION_KEY 32 /* bytes of a history's digest */

struct clime_session;

struct clime_session *clime_session_new(void);
void clime_session_free(struct clime_session *s); /* NULL is fine */
int clime_session_turns(const struct clime_session *s);
/* Tokens that it keeps: those of all branches, what they begin with in common once; where it keeps experts, each
 * branch's. */
int64_t clime_session_tokens(const struct clime_session *s);

/* The turn whose path is the longest that ids begin with; -1 = none. */
int clime_session_find_ids(const struct clime_session *s, const int32_t *ids, int n);
/* The newest turn whose history (below) ends with this digest; -1 = none. */
int clime_session_find_key(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]);
/* How many digests the history of some turn begins with as keys[n] do: the most; -1 when no turn has a history. *bare:
 * the next one is that of such a turn's answer without its reasoning. */
int clime_session_common(const struct clime_session *s, const uint8_t (*keys)[CLIME_SESSION_KEY], int n, bool *bare);

/* A turn was asked for, and its client left before the answer: it is counted, and the tree stays as it is. */
void clime_session_abandon(struct clime_session *s);

bool clime_session_is_leaf(const struct clime_session *s, int turn); /* nothing goes on from it */
struct clime_turn_counts clime_session_counts(const struct clime_session *s);

/* The path of a turn; -1 has an empty one. Returns how many; ids may be NULL. */
int clime_session_path(const struct clime_session *s, int turn, int32_t *ids);

/* How many tokens of a turn's path are the prompt: those before the first that was sampled. */
int clime_session_prompt(const struct clime_session *s, int turn);

/* The first position whose experts no turn up to this one (-1 = none) has brought. */
int clime_session_experts_from(const struct clime_session *s, int turn);

/* Of the weights that sampled a turn's last token. */
int64_t clime_session_version(const struct clime_session *s, int turn);

/* Adds a turn after `parent` (-1 = a root). in: a sample whose prompt is the path of the parent and then the new
 * tokens, and whose response was sampled; it is copied. Its experts, where it has any, are of the positions from
 * clime_session_experts_from(parent) on. Returns the turn's number. */
int clime_session_add(struct clime_session *s, int parent, enum clime_turn_kind kind, const struct clime_sample *in);
/* The turn's history: digests of what a client repeats when it goes on from here, of more and more messages up to the
 * turn's answer (keys[n], n > 0); bare: the last one if the answer had no reasoning. Copied. */
void clime_session_set_history(struct clime_session *s, int turn, const uint8_t (*keys)[CLIME_SESSION_KEY], int n,
                               const uint8_t bare[CLIME_SESSION_KEY]);

/* Makes the path of a turn the tokens of out: the first turn's own tokens are the prompt, the rest the response, with
 * mask 0 (and log-probability 0) where the policy did not sample, and where it did in a turn that an earlier fill of
 * the session gave away: an answer that branches share is trained once. Status and finish are those of the turn. */
void clime_session_fill(struct clime_session *s, int turn, struct clime_sample *out);

#endif
