/* Session: the exact tokens of a task, a tree of turns.
 *
 * Nouns
 *   turn     tokens not sampled by the policy (prompt, tool output, template text), then sampled ones.
 *   path     the tokens of a turn and of all turns before it: everything the policy saw and sampled.
 *   branch   a turn that does not extend the newest one: a client that edits, cuts or reorders its history gets a new
 *            branch and changes no existing turn.
 * A turn's log-probabilities and versions are stored with its tokens; text is never tokenised again to recover them.
 * One thread at a time; no locking. */
#ifndef CLIME_TRAINER_ENV_SESSION_H
#define CLIME_TRAINER_ENV_SESSION_H

#include "trainer/sample/sample.h"
#include "trainer/sample/turns.h"

#define CLIME_SESSION_KEY 32 /* bytes of a history's digest */

struct clime_session;

struct clime_session *clime_session_new(void);
void clime_session_free(struct clime_session *s); /* NULL is fine */
int clime_session_turns(const struct clime_session *s);
/* Stored tokens of all branches; common beginnings count once, or per branch when experts are stored. */
int64_t clime_session_tokens(const struct clime_session *s);

/* The turn with the longest path that is a prefix of ids; -1 = none. */
int clime_session_find_ids(const struct clime_session *s, const int32_t *ids, int n);
/* The newest turn whose history (below) ends with this digest; -1 = none. */
int clime_session_find_key(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]);
/* The most digests of keys[n] that any turn's history begins with; -1 when no turn has a history. *bare: the next one
 * matches such a turn's answer without its reasoning. */
int clime_session_common(const struct clime_session *s, const uint8_t (*keys)[CLIME_SESSION_KEY], int n, bool *bare);

/* Counts a turn whose client left before the answer; the tree is unchanged. */
void clime_session_abandon(struct clime_session *s);

bool clime_session_is_leaf(const struct clime_session *s, int turn); /* no turn follows it */
struct clime_turn_counts clime_session_counts(const struct clime_session *s);

/* Copies a turn's path; turn -1 has an empty one. Returns its length; ids may be NULL. */
int clime_session_path(const struct clime_session *s, int turn, int32_t *ids);

/* Number of tokens in a turn's path before the first sampled one: the prompt. */
int clime_session_prompt(const struct clime_session *s, int turn);

/* The first position without stored experts on the path to this turn (-1 = none). */
int clime_session_experts_from(const struct clime_session *s, int turn);

/* Version of the weights that sampled a turn's last token. */
int64_t clime_session_version(const struct clime_session *s, int turn);

/* Adds a turn after `parent` (-1 = a root). in: its prompt is the parent's path plus the new tokens, its response was
 * sampled; copied. Its experts, if any, cover positions from clime_session_experts_from(parent) on. Returns the turn's
 * number. */
int clime_session_add(struct clime_session *s, int parent, enum clime_turn_kind kind, const struct clime_sample *in);
/* Sets the turn's history: digests of the messages a client repeats to continue from it, cumulative up to the turn's
 * answer (keys[n], n > 0); bare: the last one without the answer's reasoning. Copied. */
void clime_session_set_history(struct clime_session *s, int turn, const uint8_t (*keys)[CLIME_SESSION_KEY], int n,
                               const uint8_t bare[CLIME_SESSION_KEY]);

/* Fills out with a turn's path: the first turn's own tokens are the prompt, the rest the response. mask is 0 (and the
 * log-probability 0) where the policy did not sample, and mask is 0 in turns that an earlier fill included: an answer
 * shared by branches is trained once. Status and finish are the turn's. */
void clime_session_fill(struct clime_session *s, int turn, struct clime_sample *out);

#endif
