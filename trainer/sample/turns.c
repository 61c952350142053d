/* Counts of turns by kind. Pure. */
#include "trainer/sample/turns.h"

const struct clime_turn_kind_name clime_turn_kinds[CLIME_N_TURN_KINDS] = {
    [CLIME_TURN_FIRST] = {"first", "began a session"},
    [CLIME_TURN_EXTENDED] = {"extended", "went on from their session's exact tokens"},
    [CLIME_TURN_REWOUND] = {"rewound", "the same from an earlier point: asked again"},
    [CLIME_TURN_ABANDONED] = {"abandoned", "were given up: the client left before the answer"},
    [CLIME_TURN_TEMPLATE] = {"branch_template", "the chat template rewrote the past"},
    [CLIME_TURN_REASONING] = {"branch_reasoning", "the client left out an answer's reasoning"},
    [CLIME_TURN_ANSWER] = {"branch_answer", "the client changed an answer"},
    [CLIME_TURN_MESSAGE] = {"branch_message", "the client changed another message"},
    [CLIME_TURN_TOOLS] = {"branch_tools", "the client changed the tools"},
    [CLIME_TURN_OTHER] = {"branch_other", "another conversation"},
    [CLIME_TURN_IDS] = {"branch_ids", "input_ids that go on from no turn"},
};

void clime_turn_counts_add(struct clime_turn_counts *to, const struct clime_turn_counts *more) {
    for (int i = 0; i < CLIME_N_TURN_KINDS; i++) to->n[i] += more->n[i];
}

int64_t clime_turn_counts_all(const struct clime_turn_counts *c) {
    int64_t all = 0;
    for (int i = 0; i < CLIME_N_TURN_KINDS; i++) all += c->n[i];
    return all;
}
