/* Turn kinds and their counts: how turns of sessions (trainer/env/session.h) continue their history. A report on drift.
 *
 * Sampled tokens are kept only where a turn extends them. Otherwise the client or the chat template changed the
 * history, and the turn begins a branch with its own tokens: there the policy's answer to the changed history is
 * trained. The counts tell which of the two happened. */
#ifndef CLIME_TRAINER_SAMPLE_TURNS_H
#define CLIME_TRAINER_SAMPLE_TURNS_H

#include <stdint.h>

enum clime_turn_kind {
    CLIME_TURN_FIRST,     /* begins its session */
    CLIME_TURN_EXTENDED,  /* extends a turn and keeps its tokens; only new text was tokenised */
    CLIME_TURN_REWOUND,   /* continues a turn that another one continues already: a retry or an alternative */
    CLIME_TURN_ABANDONED, /* its client left before the answer: no turn of the session */
    /* branches with their own rendering, because: */
    CLIME_TURN_TEMPLATE,  /* the chat template renders the history differently when messages follow */
    CLIME_TURN_REASONING, /* the client dropped an answer's reasoning */
    CLIME_TURN_ANSWER,    /* the client changed or inserted an answer */
    CLIME_TURN_MESSAGE,   /* the client changed, dropped or added another message */
    CLIME_TURN_TOOLS,     /* the tools differ */
    CLIME_TURN_OTHER,     /* another conversation: its first message differs */
    CLIME_TURN_IDS,       /* input_ids that extend no turn */
    CLIME_N_TURN_KINDS
};

struct clime_turn_counts {
    int64_t n[CLIME_N_TURN_KINDS];
};

/* Names for metrics (docs/metrics.md) and phrases for reports. */
struct clime_turn_kind_name {
    const char *name, *words;
};
extern const struct clime_turn_kind_name clime_turn_kinds[CLIME_N_TURN_KINDS];

void clime_turn_counts_add(struct clime_turn_counts *to, const struct clime_turn_counts *more);
int64_t clime_turn_counts_all(const struct clime_turn_counts *c);

#endif
