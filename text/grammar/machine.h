/* Runs a program as a lazily built automaton: computes and caches the places reachable after some bytes.
 *
 *   frame   an open call on top of others. Frames are shared and immutable: equal stacks have one number.
 *   place   an op that consumes a byte, and its stack.
 *   set     all places that the text so far may reach. Equal sets have one number; 0 is the empty set. A set records
 *           whether the text may end there and caches its transition for each byte class.
 *
 * A grammar without nesting thus becomes a deterministic automaton during use; a nested one as far as its texts
 * require. Why not PCRE2: a mask must know, for each of 150,000 tokens, whether some text continues with it; cached,
 * comparable states answer that in one walk of a trie.
 *
 * One owner, one thread. The cache is capped (machine.bytes): the owner empties it between two queries.
 */
#ifndef CLIME_TEXT_GRAMMAR_MACHINE_H
#define CLIME_TEXT_GRAMMAR_MACHINE_H

#include "text/grammar/program.h"

#define CLIME_STACK_ROOT 0    /* no open call: the grammar's end */
#define CLIME_STACK_UNKNOWN 1 /* unknown caller: a set on top of it serves all callers */

#define CLIME_MAX_PLACES 2048 /* per set; a larger one becomes empty: a dead end */

struct clime_frame {
    int32_t op;    /* the CALL or REPEAT op */
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
    int32_t next;  /* nexts[next .. + n_classes): sets by byte class, -1 = unknown; next -1 = not allocated */
    int32_t mask;  /* used by masks.h; -1 = none yet */
    int32_t reach; /* the greatest depth examined so far: places deeper in the stack may differ */
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
    /* the current closure */
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
    size_t bytes;   /* cached bytes */
    int n_visits;   /* of the current closure */
    bool overran;   /* sticky: a closure was too large and became the empty set */
    int64_t effort; /* total ops and trie nodes visited */
};

void clime_machine_init(struct clime_machine *m, const struct clime_grammar_program *p);
void clime_machine_free(struct clime_machine *m);
void clime_machine_forget(struct clime_machine *m); /* empties the cache; all numbers become invalid */
int32_t clime_machine_forget_others(struct clime_machine *m, int32_t set); /* keeps one set, which gets a new number */

int32_t clime_machine_start(struct clime_machine *m);
int32_t clime_machine_step(struct clime_machine *m, int32_t set, uint8_t byte);

/* The set of one place on top of CLIME_STACK_UNKNOWN: its frames down to the call of its rule, with counts as far as
 * `horizon` bytes can distinguish them. */
int32_t clime_machine_relative(struct clime_machine *m, struct clime_place at, int horizon);
/* The set after the end of the place's rule: in its caller's frame. */
int32_t clime_machine_behind(struct clime_machine *m, struct clime_place at);

#endif
