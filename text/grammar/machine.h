/* Runs a program: which places it may be at after some bytes, found as they are asked for and kept.
 *
 *   frame   a call that is not over, on top of others. Frames are shared and never change: equal stacks are one number.
 *   place   an op that takes a byte, and the stack above which it stands.
 *   set     all places where the text so far may have led. Equal sets are one number, 0 is the empty one. A set knows
 *           whether the text may end there, and where each class of bytes leads once that was asked.
 *
 * So a grammar that does not nest becomes a deterministic automaton while it is used, and one that nests as much of one
 * as the texts that came had use for. Why not PCRE2: a mask asks, for each of 150,000 tokens, whether some text goes on
 * like that; only states that can be kept and compared answer that by walking a trie once.
 *
 * One owner, one thread. What is kept is capped (machine.bytes): the owner empties it between two questions.
 */
#ifndef CLIME_TEXT_GRAMMAR_MACHINE_H
#define CLIME_TEXT_GRAMMAR_MACHINE_H

#include "text/grammar/program.h"

#define CLIME_STACK_ROOT 0    /* nothing is being called: the grammar's end */
#define CLIME_STACK_UNKNOWN 1 /* whoever called: a set on top of it stands for all callers */

#define CLIME_MAX_PLACES 2048 /* of a set; where there were more, none is kept: nothing may go on there */

struct clime_frame {
    int32_t op;    /* of the CALL or REPEAT */
    int32_t count; /* REPEAT: repetitions done */
    int32_t below;
    int32_t depth;
};

struct clime_place {
    int32_t pc, stack;
};

struct clime_set {
    int32_t at, n; /* places[at .. at + n), ascending */
    bool ends;     /* the text may end here */
    bool leaves;   /* the rule on top of CLIME_STACK_UNKNOWN may end here */
    int32_t next;  /* nexts[next .. + n_classes): sets by class of byte, -1 = not known yet; -1 = none made yet */
    int32_t mask;  /* the owner's: masks.h; -1 = none yet */
    int32_t reach; /* the greatest depth that was looked at on the way here: places below it may differ */
};

struct clime_machine {
    const struct clime_grammar_program *p;
    struct clime_frame *frames;
    int n_frames, frames_size;
    struct clime_place *places;
    int n_places, places_size;
    struct clime_set *sets;
    int n_sets, sets_size;
    int32_t *nexts;
    int n_nexts, nexts_size;
    int32_t *frame_slots, *set_slots; /* open addressing, index + 1; powers of two */
    int n_frame_slots, n_set_slots;
    /* a closure in work */
    struct clime_place *work, *found;
    int n_work, work_size, n_found, found_size;
    struct {
        struct clime_place at;
        uint32_t stamp;
    } * seen;
    int n_seen, seen_size;
    uint32_t stamp;
    bool ends, leaves;
    int32_t reach;
    size_t bytes;   /* of what is kept */
    int n_visits;   /* of the closure in work */
    bool overran;   /* ever: a closure was too large, and is the empty set */
    int64_t effort; /* ever: ops and nodes of a trie looked at */
};

void clime_machine_init(struct clime_machine *m, const struct clime_grammar_program *p);
void clime_machine_free(struct clime_machine *m);
void clime_machine_forget(struct clime_machine *m); /* empties it; all numbers are void */
int32_t clime_machine_forget_others(struct clime_machine *m,
                                    int32_t set); /* of all sets but one, which gets a new number */

int32_t clime_machine_start(struct clime_machine *m);
int32_t clime_machine_step(struct clime_machine *m, int32_t set, uint8_t byte);

/* The set of one place on top of CLIME_STACK_UNKNOWN: the place's frames down to the call of its rule, with counts as
 * far as `horizon` bytes can tell them apart. */
int32_t clime_machine_relative(struct clime_machine *m, struct clime_place at, int horizon);
/* Where the end of the place's rule leads: its caller's frame and what follows it. */
int32_t clime_machine_behind(struct clime_machine *m, struct clime_place at);

#endif
