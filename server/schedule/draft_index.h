/* N-gram index of draft tokens: what followed the last few tokens before, in a sequence and its siblings.
 *
 * A context is the last 2, 4 or 8 tokens of a text; a family is a number shared by texts that learn together (samples
 * of one prompt). For each context the index keeps the token that followed and how often in a row it did; for each
 * length and count, how often such an answer was recently right: its chance, which each text scales by its own hit
 * rate. Memory is fixed at opening; new entries replace old ones. Owner: the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFT_INDEX_H
#define CLIME_SERVER_SCHEDULE_DRAFT_INDEX_H

#include <stdint.h>

#define CLIME_DRAFT_SLOTS (1 << 20) /* contexts: 12 MiB */

struct clime_draft_index;

struct clime_draft_trust { /* of one text, over its last draws; starts as 0 */
    float promised, kept;  /* sum of the guesses' chances; how many of them were right */
};

/* n_slots: a power of two. */
struct clime_draft_index *clime_draft_index_open(int n_slots);
void clime_draft_index_close(struct clime_draft_index *x); /* NULL is fine */

/* Learns that ids[at] follows ids[0 .. at). trust: the text's, updated with how good the answers were, when a draw
 * produced the token; NULL for a prompt token. */
void clime_draft_index_learn(struct clime_draft_index *x, uint64_t family, const int32_t *ids, int at,
                             struct clime_draft_trust *trust);

/* Writes up to `most` guesses after ids[0 .. n); chance[i]: probability that all up to the i-th are right, not
 * ascending. Returns how many. */
int clime_draft_index_guess(const struct clime_draft_index *x, uint64_t family, int32_t *ids, int n, int most,
                            const struct clime_draft_trust *trust, float *chance);

#endif
