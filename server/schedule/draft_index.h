/* What followed the last few tokens when they came before: the source of guesses, for a sequence and its siblings.
 *
 * A context is the last 2, 4 or 8 tokens of a text; a family is the texts that share an index by a number (samples of
 * one prompt). For each context the index knows the token that followed it and how often that was so in a row, and for
 * each length and count how often such an answer was right of late: its chance, which each text trusts as far as its
 * own draws bear it out. Memory is fixed at opening; what is new displaces what is old. Owner: the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFT_INDEX_H
#define CLIME_SERVER_SCHEDULE_DRAFT_INDEX_H

#include <stdint.h>

#define CLIME_DRAFT_SLOTS (1 << 20) /* contexts: 12 MiB */

struct clime_draft_index;

struct clime_draft_trust { /* of one text, over its last draws; begins as 0 */
    float promised, kept;  /* sum of the chances of what would have been guessed; how many of those were drawn */
};

/* n_slots: a power of two. */
struct clime_draft_index *clime_draft_index_open(int n_slots);
void clime_draft_index_close(struct clime_draft_index *x); /* NULL is fine */

/* ids[at] came after ids[0 .. at). trust: of the text, when a draw gave the token, which tells how good the answers
 * were; NULL: it was given. */
void clime_draft_index_learn(struct clime_draft_index *x, uint64_t family, const int32_t *ids, int at,
                             struct clime_draft_trust *trust);

/* Up to `most` tokens that may follow ids[0 .. n), written behind them; chance[i]: that all up to the i-th are right,
 * not ascending. Returns how many. */
int clime_draft_index_guess(const struct clime_draft_index *x, uint64_t family, int32_t *ids, int n, int most,
                            const struct clime_draft_trust *trust, float *chance);

#endif
