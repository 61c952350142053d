/* How the turns of sessions (trainer/env/session.h) go on from what a session holds already: the report on drift.
 *
 * Tokens that the policy sampled stay as they are only where a turn goes on from them. Where it does not, the client or
 * the chat template has made another past of it, and the turn begins a branch with tokens of its own: what is trained
 * there is the policy's answer to that other past. Which of both it was is counted.
 */
#ifndef CLIME_TRAINER_SAMPLE_TURNS_H
#define CLIME_TRAINER_SAMPLE_TURNS_H

#include <stdint.h>

enum clime_turn_kind {
    CLIME_TURN_FIRST,     /* it begins its session */
    CLIME_TURN_EXTENDED,  /* it goes on from a turn, whose tokens stay; only what is new was tokenised */
    CLIME_TURN_REWOUND,   /* it goes on from where another turn has gone on already: asked again, or tried otherwise */
    CLIME_TURN_ABANDONED, /* its client left before the answer, which is nobody's: it is no turn of the session */
    /* it is a branch with a rendering of its own, because */
    CLIME_TURN_TEMPLATE,  /* the chat template renders the past otherwise once more messages follow */
    CLIME_TURN_REASONING, /* the client left out the reasoning of an answer */
    CLIME_TURN_ANSWER,    /* the client changed an answer, or put one there */
    CLIME_TURN_MESSAGE,   /* the client changed, left out or added another message */
    CLIME_TURN_TOOLS,     /* the tools are others */
    CLIME_TURN_OTHER,     /* another conversation: its first message is another one */
    CLIME_TURN_IDS,       /* input_ids that no turn's tokens begin */
    CLIME_N_TURN_KINDS
};

struct clime_turn_counts {
    int64_t n[CLIME_N_TURN_KINDS];
};

/* Names for metrics (docs/metrics.md), and in words for a report. */
struct clime_turn_kind_name {
    const char *name, *words;
};
extern const struct clime_turn_kind_name clime_turn_kinds[CLIME_N_TURN_KINDS];

void clime_turn_counts_add(struct clime_turn_counts *to, const struct clime_turn_counts *more);
int64_t clime_turn_counts_all(const struct clime_turn_counts *c);

#endif
