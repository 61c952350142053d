/* The lazily built automaton. Called by masks.c and grammar.c, on the grammar user's thread; owns frames, sets and
 * tables.
 *
 * Invariant: a place is kept only if its stack's depth plus the op's need fits max_depth, so every place can reach the
 * end of the text: a non-empty set is not a dead end.
 */
#include "text/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define FIRST_SLOTS 256
#define VISIT 8              /* cost of an op visit, in trie nodes */
#define MAX_VISITS (1 << 16) /* per closure: some 3 ms */

static void *grown(void *p, int *size, int n, size_t item) {
    if (n <= *size) return p;
    while (*size < n) *size = *size ? *size * 2 : 64;
    return xrealloc(p, (size_t)*size * item);
}

static uint64_t hash_place(int32_t a, int32_t b) {
    uint64_t words[] = {(uint64_t)(uint32_t)a << 32 | (uint32_t)b};
    return clime_hash64(words, 1);
}

/* ---- frames ---- */

static uint64_t hash_frame(const struct clime_frame *f) {
    uint64_t words[] = {(uint64_t)(uint32_t)f->op << 32 | (uint32_t)f->count, (uint64_t)(uint32_t)f->below};
    return clime_hash64(words, 2);
}

static int32_t *frame_slot(struct clime_machine *m, const struct clime_frame *f) {
    int at = (int)(hash_frame(f) & (uint64_t)(m->n_frame_slots - 1));
    for (int32_t i; (i = m->frame_slots[at]); at = (at + 1) & (m->n_frame_slots - 1)) {
        const struct clime_frame *g = &m->frames[i - 1];
        if (g->op == f->op && g->count == f->count && g->below == f->below) break;
    }
    return &m->frame_slots[at];
}

static int32_t push(struct clime_machine *m, int32_t op, int32_t count, int32_t below) {
    struct clime_frame f = {op, count, below, m->frames[below].depth + 1};
    int32_t *slot = frame_slot(m, &f);
    if (*slot) return *slot - 1;
    if (2 * (m->n_frames + 1) > m->n_frame_slots) {
        free(m->frame_slots);
        m->n_frame_slots *= 2;
        m->frame_slots = xcalloc((size_t)m->n_frame_slots, sizeof *m->frame_slots);
        for (int32_t i = 2; i < m->n_frames; i++) *frame_slot(m, &m->frames[i]) = i + 1;
        slot = frame_slot(m, &f);
    }
    m->frames = grown(m->frames, &m->frames_size, m->n_frames + 1, sizeof *m->frames);
    m->frames[m->n_frames] = f;
    m->bytes += sizeof f + 2 * sizeof *slot;
    *slot = ++m->n_frames;
    return *slot - 1;
}

/* ---- closures ---- */

static void begin(struct clime_machine *m) {
    m->n_work = m->n_found = m->n_seen = 0;
    m->ends = m->leaves = false;
    m->reach = 0;
    m->n_visits = 0;
    if (++m->stamp == 0) { /* after 2^32 closures stamps wrap around */
        memset(m->seen, 0, (size_t)m->seen_size * sizeof *m->seen);
        m->stamp = 1;
    }
}

static bool first_time(struct clime_machine *m, struct clime_place at) {
    if (2 * (m->n_seen + 1) > m->seen_size) {
        int n = m->seen_size ? m->seen_size * 2 : 256;
        void *was = m->seen;
        m->seen = xcalloc((size_t)n, sizeof *m->seen);
        m->seen_size = n;
        m->stamp = 1;
        m->n_seen = 0;
        free(was); /* revisits this closure's places: harmless */
    }
    int i = (int)(hash_place(at.pc, at.stack) & (uint64_t)(m->seen_size - 1));
    for (; m->seen[i].stamp == m->stamp; i = (i + 1) & (m->seen_size - 1))
        if (m->seen[i].at.pc == at.pc && m->seen[i].at.stack == at.stack) return false;
    m->seen[i].at = at;
    m->seen[i].stamp = m->stamp;
    m->n_seen++;
    return true;
}

static void visit(struct clime_machine *m, int32_t pc, int32_t stack) {
    struct clime_place at = {pc, stack};
    int32_t need = m->p->ops[pc].need, depth = m->frames[stack].depth + need;
    m->effort += VISIT;
    m->n_visits++;
    if (need > m->p->max_depth) return;
    if (depth > m->reach) m->reach = depth;
    if (depth > m->p->max_depth || !first_time(m, at)) return;
    m->work = grown(m->work, &m->work_size, m->n_work + 1, sizeof *m->work);
    m->work[m->n_work++] = at;
}

/* After c repetitions: visits the exit and the next repetition. */
static void repeat(struct clime_machine *m, int32_t pc, int32_t c, int32_t below) {
    const struct clime_op *op = &m->p->ops[pc];
    if (op->max < 0 && c > op->min) c = op->min; /* more are equivalent */
    if (c >= op->min) visit(m, op->b, below);
    if (op->max < 0 || c < op->max) {
        if (m->frames[below].depth < m->p->max_depth) visit(m, op->a, push(m, pc, c, below));
        if (m->frames[below].depth >= m->reach) m->reach = m->frames[below].depth + 1;
    }
}

static void finish(struct clime_machine *m) {
    while (m->n_work > 0) {
        struct clime_place at = m->work[--m->n_work];
        const struct clime_op *op = &m->p->ops[at.pc];
        switch (op->kind) {
        case CLIME_OP_BYTE:
            m->found = grown(m->found, &m->found_size, m->n_found + 1, sizeof *m->found);
            m->found[m->n_found++] = at;
            break;
        case CLIME_OP_SPLIT:
            visit(m, op->b, at.stack);
            visit(m, op->a, at.stack);
            break;
        case CLIME_OP_CALL:
            visit(m, op->a, m->p->ops[op->b].kind == CLIME_OP_RET ? at.stack : push(m, at.pc, 0, at.stack));
            break;
        case CLIME_OP_REPEAT:
            repeat(m, at.pc, 0, at.stack);
            break;
        case CLIME_OP_RET:
            if (at.stack == CLIME_STACK_ROOT) {
                m->ends = true;
            } else if (at.stack == CLIME_STACK_UNKNOWN) {
                m->leaves = true;
            } else {
                struct clime_frame f = m->frames[at.stack];
                if (m->p->ops[f.op].kind == CLIME_OP_CALL)
                    visit(m, m->p->ops[f.op].b, f.below);
                else
                    repeat(m, f.op, f.count + 1, f.below);
            }
            break;
        case CLIME_OP_NEVER:
            break;
        }
        if (m->n_found > CLIME_MAX_PLACES || m->n_work > 4 * CLIME_MAX_PLACES || m->n_visits > MAX_VISITS) {
            m->n_found = m->n_work = 0;
            m->ends = m->leaves = false;
            m->overran = true;
        }
    }
}

/* ---- sets ---- */

static int by_place(const void *a, const void *b) {
    const struct clime_place *x = a, *y = b;
    return x->pc != y->pc ? (x->pc > y->pc) - (x->pc < y->pc) : (x->stack > y->stack) - (x->stack < y->stack);
}

static uint64_t hash_set(const struct clime_place *at, int n, bool ends, bool leaves) {
    return clime_hash_bytes(at, (size_t)n * sizeof *at, (uint64_t)ends | (uint64_t)leaves << 1);
}

static int32_t *set_slot(struct clime_machine *m, const struct clime_place *places, int n, bool ends, bool leaves) {
    int at = (int)(hash_set(places, n, ends, leaves) & (uint64_t)(m->n_set_slots - 1));
    for (int32_t i; (i = m->set_slots[at]); at = (at + 1) & (m->n_set_slots - 1)) {
        const struct clime_set *s = &m->sets[i - 1];
        if (s->n == n && s->ends == ends && s->leaves == leaves &&
            (n == 0 || memcmp(m->places + s->at, places, (size_t)n * sizeof *places) == 0))
            break;
    }
    return &m->set_slots[at];
}

/* Turns the closure into a set. */
static int32_t settle(struct clime_machine *m) {
    int n = 0;
    if (m->n_found > 1) qsort(m->found, (size_t)m->n_found, sizeof *m->found, by_place);
    for (int i = 0; i < m->n_found; i++) /* a grown table may cause duplicates */
        if (n == 0 || by_place(&m->found[n - 1], &m->found[i]) != 0) m->found[n++] = m->found[i];
    int32_t *slot = set_slot(m, m->found, n, m->ends, m->leaves);
    if (*slot) {
        if (m->sets[*slot - 1].reach < m->reach) m->sets[*slot - 1].reach = m->reach;
        return *slot - 1;
    }
    m->places = grown(m->places, &m->places_size, m->n_places + n, sizeof *m->places);
    if (n > 0) memcpy(m->places + m->n_places, m->found, (size_t)n * sizeof *m->found);
    m->sets = grown(m->sets, &m->sets_size, m->n_sets + 1, sizeof *m->sets);
    m->sets[m->n_sets++] = (struct clime_set){
        .at = m->n_places, .n = n, .ends = m->ends, .leaves = m->leaves, .next = -1, .mask = -1, .reach = m->reach};
    m->n_places += n;
    m->bytes += (size_t)n * sizeof *m->found + sizeof *m->sets + 2 * sizeof *slot;
    *slot = m->n_sets;
    if (2 * (m->n_sets + 1) > m->n_set_slots) {
        free(m->set_slots);
        m->n_set_slots *= 2;
        m->set_slots = xcalloc((size_t)m->n_set_slots, sizeof *m->set_slots);
        for (int32_t i = 0; i < m->n_sets; i++) {
            const struct clime_set *s = &m->sets[i];
            *set_slot(m, m->places + s->at, s->n, s->ends, s->leaves) = i + 1;
        }
    }
    return m->n_sets - 1;
}

int32_t clime_machine_start(struct clime_machine *m) {
    begin(m);
    visit(m, m->p->start, CLIME_STACK_ROOT);
    finish(m);
    return settle(m);
}

int32_t clime_machine_step(struct clime_machine *m, int32_t set, uint8_t byte) {
    const struct clime_grammar_program *p = m->p;
    int class = p->class_of[byte];
    if (m->sets[set].next < 0) {
        int n = p->n_classes;
        m->nexts = grown(m->nexts, &m->nexts_size, m->n_nexts + n, sizeof *m->nexts);
        memset(m->nexts + m->n_nexts, -1, (size_t)n * sizeof *m->nexts);
        m->sets[set].next = m->n_nexts;
        m->n_nexts += n;
        m->bytes += (size_t)n * sizeof *m->nexts;
    }
    int32_t at = m->sets[set].next + class;
    if (m->nexts[at] >= 0) return m->nexts[at];
    const struct clime_set s = m->sets[set];
    begin(m);
    for (int i = 0; i < s.n; i++) {
        struct clime_place from = m->places[s.at + i];
        const struct clime_op *op = &p->ops[from.pc];
        if (p->sets[op->a].bits[byte >> 5] >> (byte & 31) & 1) visit(m, op->b, from.stack);
    }
    finish(m);
    int32_t to = settle(m);
    m->nexts[at] = to;
    return to;
}

/* ---- sets on top of an unknown caller ---- */

/* A count equivalent to c for the next `horizon` bytes. */
static int32_t near_count(const struct clime_op *op, int32_t c, int horizon) {
    if (op->min - c > horizon && (op->max < 0 || op->max - c > horizon)) return 0;
    if (c >= op->min && op->max >= 0 && op->max - c > horizon) return op->min;
    return c;
}

int32_t clime_machine_relative(struct clime_machine *m, struct clime_place at, int horizon) {
    int32_t frames[CLIME_GRAMMAR_MAX_DEPTH + 1], stack = at.stack, below = CLIME_STACK_UNKNOWN;
    int n = 0;
    for (; stack > CLIME_STACK_UNKNOWN && m->p->ops[m->frames[stack].op].kind == CLIME_OP_REPEAT;
         stack = m->frames[stack].below)
        frames[n++] = stack;
    while (n > 0) {
        struct clime_frame f = m->frames[frames[--n]];
        below = push(m, f.op, near_count(&m->p->ops[f.op], f.count, horizon), below);
    }
    begin(m);
    visit(m, at.pc, below);
    finish(m);
    return settle(m);
}

int32_t clime_machine_behind(struct clime_machine *m, struct clime_place at) {
    int32_t stack = at.stack;
    while (stack > CLIME_STACK_UNKNOWN && m->p->ops[m->frames[stack].op].kind == CLIME_OP_REPEAT)
        stack = m->frames[stack].below;
    begin(m);
    if (stack > CLIME_STACK_UNKNOWN)
        visit(m, m->p->ops[m->frames[stack].op].b, m->frames[stack].below);
    else
        visit(m, 0, stack); /* RET: the text may end */
    finish(m);
    return settle(m);
}

/* ---- making, emptying ---- */

static void begin_empty(struct clime_machine *m) {
    m->n_frames = 2;
    m->frames = grown(m->frames, &m->frames_size, 2, sizeof *m->frames);
    m->frames[CLIME_STACK_ROOT] = m->frames[CLIME_STACK_UNKNOWN] = (struct clime_frame){.op = 0};
    m->n_frame_slots = m->n_set_slots = FIRST_SLOTS;
    m->frame_slots = xcalloc(FIRST_SLOTS, sizeof *m->frame_slots);
    m->set_slots = xcalloc(FIRST_SLOTS, sizeof *m->set_slots);
    begin(m);
    settle(m); /* 0: the empty set */
}

void clime_machine_init(struct clime_machine *m, const struct clime_grammar_program *p) {
    *m = (struct clime_machine){.p = p};
    begin_empty(m);
}

void clime_machine_free(struct clime_machine *m) {
    free(m->frames);
    free(m->places);
    free(m->sets);
    free(m->nexts);
    free(m->frame_slots);
    free(m->set_slots);
    free(m->work);
    free(m->found);
    free(m->seen);
    *m = (struct clime_machine){.p = m->p};
}

void clime_machine_forget(struct clime_machine *m) {
    int64_t effort = m->effort;
    clime_machine_free(m);
    m->effort = effort;
    begin_empty(m);
}

/* Copies a stack of `was` to this machine. moved[]: new numbers; 0 = not copied. */
static int32_t move_stack(struct clime_machine *m, const struct clime_frame *was, int32_t *moved, int32_t stack) {
    const struct clime_frame *f = &was[stack];
    if (stack <= CLIME_STACK_UNKNOWN) return stack;
    if (!moved[stack]) {
        m->effort += VISIT;
        moved[stack] = push(m, f->op, f->count, move_stack(m, was, moved, f->below));
    }
    return moved[stack];
}

int32_t clime_machine_forget_others(struct clime_machine *m, int32_t set) {
    struct clime_machine was = *m;
    const struct clime_set s = was.sets[set];
    int32_t *moved = xcalloc((size_t)was.n_frames, sizeof *moved);
    *m = (struct clime_machine){.p = was.p, .overran = was.overran, .effort = was.effort};
    begin_empty(m);
    begin(m);
    m->found = grown(m->found, &m->found_size, s.n, sizeof *m->found);
    for (; m->n_found < s.n; m->n_found++) {
        struct clime_place at = was.places[s.at + m->n_found];
        m->found[m->n_found] = (struct clime_place){at.pc, move_stack(m, was.frames, moved, at.stack)};
    }
    m->ends = s.ends;
    m->leaves = s.leaves;
    m->reach = s.reach;
    free(moved);
    clime_machine_free(&was);
    return settle(m);
}
