/* Compiles expressions to ops. Called by grammar.c on the compiling thread.
 *
 * Code is generated backwards: compile(node, next) returns the entry of `node` followed by `next`. Compiled pairs are
 * memoized, so a shared node is compiled once per continuation. Then two passes over the ops: `need` (shortest paths to
 * rule ends, by repeated sweeps, since rules are mutually recursive), and a search for left-recursive rules, which the
 * machine could not run.
 */
#include "text/grammar/program.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define RET_PC 0
#define NO_NEED (1 << 20)            /* no path to the end */
#define MAX_SWEPT ((int64_t)1 << 27) /* ops visited by an analysis: some 0.3 s */

struct pair {
    int32_t node, next, pc;
};

struct compiler {
    struct clime_exprs *x;
    struct clime_grammar_program *p;
    struct pair *memo; /* open addressing; pc < 0 = empty */
    int n_memo, memo_size;
    int32_t *entry; /* [n_rules] or -1 */
    /* bodies still to compile: rules, and repeated nodes as unnamed rules */
    struct {
        int32_t node, pc;
    } * todo;
    int n_todo, todo_size;
    bool full;
};

/* ---- ops ---- */

static int32_t emit(struct compiler *c, struct clime_op op) {
    struct clime_grammar_program *p = c->p;
    if (p->n_ops == CLIME_PROGRAM_MAX_OPS) c->full = true;
    if (c->full) return RET_PC;
    if (p->n_ops == p->size) {
        p->size = p->size ? p->size * 2 : 256;
        p->ops = xrealloc(p->ops, (size_t)p->size * sizeof *p->ops);
    }
    p->ops[p->n_ops] = op;
    return p->n_ops++;
}

static struct pair *find(struct compiler *c, int32_t node, int32_t next) {
    uint64_t words[] = {(uint64_t)(uint32_t)node, (uint64_t)(uint32_t)next};
    int at = (int)(clime_hash64(words, 2) & (uint64_t)(c->memo_size - 1));
    while (c->memo[at].pc >= 0 && (c->memo[at].node != node || c->memo[at].next != next))
        at = (at + 1) & (c->memo_size - 1);
    return &c->memo[at];
}

static void remember(struct compiler *c, int32_t node, int32_t next, int32_t pc) {
    if (2 * (c->n_memo + 1) > c->memo_size) {
        struct pair *was = c->memo;
        int n = c->memo_size;
        c->memo_size = n ? 2 * n : 1024;
        c->memo = xmalloc((size_t)c->memo_size * sizeof *c->memo);
        for (int i = 0; i < c->memo_size; i++) c->memo[i].pc = -1;
        for (int i = 0; i < n; i++)
            if (was[i].pc >= 0) *find(c, was[i].node, was[i].next) = was[i];
        free(was);
    }
    *find(c, node, next) = (struct pair){node, next, pc};
    c->n_memo++;
}

/* The entry of a body compiled later: a SPLIT filled in then. */
static int32_t body_later(struct compiler *c, int32_t node) {
    int32_t pc = emit(c, (struct clime_op){.kind = CLIME_OP_SPLIT});
    if (c->n_todo == c->todo_size) {
        c->todo_size = c->todo_size ? c->todo_size * 2 : 64;
        c->todo = xrealloc(c->todo, (size_t)c->todo_size * sizeof *c->todo);
    }
    c->todo[c->n_todo].node = node;
    c->todo[c->n_todo++].pc = pc;
    return pc;
}

static int32_t compile(struct compiler *c, int32_t node, int32_t next);

static int32_t repeat(struct compiler *c, const struct clime_expr_node *n, int32_t next) {
    if (n->max == CLIME_EXPR_INF && n->min <= 1) {
        int32_t loop = emit(c, (struct clime_op){.kind = CLIME_OP_SPLIT, .b = next});
        int32_t body = compile(c, n->a, loop);
        if (!c->full) c->p->ops[loop].a = body;
        return n->min == 0 ? loop : body;
    }
    struct pair *body = c->memo_size ? find(c, n->a, -1) : NULL; /* -1: as a rule */
    int32_t pc = body && body->pc >= 0 ? body->pc : -1;
    if (pc < 0) {
        pc = body_later(c, n->a);
        remember(c, n->a, -1, pc);
    }
    return emit(c, (struct clime_op){.kind = CLIME_OP_REPEAT, .a = pc, .b = next, .min = n->min, .max = n->max});
}

static int32_t compile_new(struct compiler *c, int32_t node, int32_t next) {
    struct clime_exprs *x = c->x;
    const struct clime_expr_node n = x->nodes[node];
    int32_t pc = next;
    switch (n.kind) {
    case CLIME_EXPR_NEVER:
        return emit(c, (struct clime_op){.kind = CLIME_OP_NEVER});
    case CLIME_EXPR_EMPTY:
        return next;
    case CLIME_EXPR_SET:
        return emit(c, (struct clime_op){.kind = CLIME_OP_BYTE, .a = n.a, .b = next});
    case CLIME_EXPR_LITERAL:
        for (int32_t i = n.b - 1; i >= 0; i--) {
            int b = (unsigned char)x->bytes.data[n.a + i], one = clime_expr_range(x, b, b);
            pc = emit(c, (struct clime_op){.kind = CLIME_OP_BYTE, .a = x->nodes[one].a, .b = pc});
        }
        return pc;
    case CLIME_EXPR_SEQ:
        for (int32_t i = n.b - 1; i >= 0; i--) pc = compile(c, x->kids[n.a + i], pc);
        return pc;
    case CLIME_EXPR_ALT:
        pc = compile(c, x->kids[n.a + n.b - 1], next);
        for (int32_t i = n.b - 2; i >= 0; i--) {
            int32_t one = compile(c, x->kids[n.a + i], next);
            pc = emit(c, (struct clime_op){.kind = CLIME_OP_SPLIT, .a = one, .b = pc});
        }
        return pc;
    case CLIME_EXPR_REPEAT:
        return repeat(c, &n, next);
    case CLIME_EXPR_RULE:
        if (c->entry[n.a] < 0) c->entry[n.a] = body_later(c, x->rules[n.a].body);
        return emit(c, (struct clime_op){.kind = CLIME_OP_CALL, .a = c->entry[n.a], .b = next});
    }
    return next;
}

static int32_t compile(struct compiler *c, int32_t node, int32_t next) {
    if (c->full) return RET_PC;
    if (c->memo_size > 0) {
        const struct pair *seen = find(c, node, next);
        if (seen->pc >= 0) return seen->pc;
    }
    int32_t pc = compile_new(c, node, next);
    remember(c, node, next, pc);
    return pc;
}

/* ---- need ---- */

static int32_t least(const struct clime_grammar_program *p, const struct clime_op *op) {
    int32_t a, b;
    switch (op->kind) {
    case CLIME_OP_RET:
        return 0;
    case CLIME_OP_BYTE:
        return p->ops[op->b].need;
    case CLIME_OP_SPLIT:
        a = p->ops[op->a].need, b = p->ops[op->b].need;
        return a < b ? a : b;
    case CLIME_OP_CALL:
        a = p->ops[op->a].need + (p->ops[op->b].kind != CLIME_OP_RET), b = p->ops[op->b].need;
        return a > b ? a : b;
    case CLIME_OP_REPEAT:
        b = p->ops[op->b].need;
        if (op->min == 0) return b;
        a = p->ops[op->a].need + 1;
        return a > b ? a : b;
    case CLIME_OP_NEVER:
        break;
    }
    return NO_NEED;
}

/* A sweep over the ops resolves references in one direction; sweeps alternate, since rules refer both ways. A grammar
 * that exceeds the budget is rejected. */
struct sweeps {
    int64_t left; /* remaining op visits */
    bool down;
};

static bool next_sweep(struct sweeps *w, int n_ops) {
    w->down = !w->down;
    w->left -= n_ops;
    return w->left >= 0;
}

static bool find_needs(struct clime_grammar_program *p) {
    struct sweeps w = {.left = MAX_SWEPT};
    for (int i = 0; i < p->n_ops; i++) p->ops[i].need = NO_NEED;
    for (bool changed = true; changed;) {
        changed = false;
        if (!next_sweep(&w, p->n_ops)) return false;
        for (int k = 0; k < p->n_ops; k++) {
            int i = w.down ? p->n_ops - 1 - k : k;
            int32_t need = least(p, &p->ops[i]);
            if (need >= p->ops[i].need || need > CLIME_GRAMMAR_MAX_DEPTH) continue;
            p->ops[i].need = need;
            changed = true;
        }
    }
    return true;
}

/* ---- left recursion ---- */

struct left {
    const struct clime_grammar_program *p;
    uint8_t *nullable; /* [n_ops] reaches the rule's end without a byte */
    uint8_t *state;    /* [n_ops] of entries: 0 new, 1 active, 2 done */
    int32_t *stamp;    /* [n_ops] last walk that saw it */
    int32_t walk;
};

static bool is_nullable(const struct left *l, int32_t pc) {
    const struct clime_op *op = &l->p->ops[pc];
    switch (op->kind) {
    case CLIME_OP_RET:
        return true;
    case CLIME_OP_SPLIT:
        return l->nullable[op->a] || l->nullable[op->b];
    case CLIME_OP_CALL:
        return l->nullable[op->a] && l->nullable[op->b];
    case CLIME_OP_REPEAT:
        return (op->min == 0 || l->nullable[op->a]) && l->nullable[op->b];
    case CLIME_OP_BYTE:
    case CLIME_OP_NEVER:
        break;
    }
    return false;
}

/* Collects in out the rules (entry pcs) called from `pc` before a byte is consumed. */
static void left_calls(struct left *l, int32_t pc, struct clime_expr_list *work, struct clime_expr_list *out) {
    l->walk++;
    clime_expr_list_add(work, pc);
    while (work->n > 0) {
        int32_t at = work->at[--work->n];
        const struct clime_op *op = &l->p->ops[at];
        if (l->stamp[at] == l->walk) continue;
        l->stamp[at] = l->walk;
        if (op->kind == CLIME_OP_SPLIT) {
            clime_expr_list_add(work, op->a);
            clime_expr_list_add(work, op->b);
        } else if (op->kind == CLIME_OP_CALL || op->kind == CLIME_OP_REPEAT) {
            clime_expr_list_add(out, op->a);
            if (l->nullable[op->a] || (op->kind == CLIME_OP_REPEAT && op->min == 0)) clime_expr_list_add(work, op->b);
        }
    }
}

/* Depth-first search over rules without C recursion: a frame is the start of its list of calls. Returns the entry of a
 * left-recursive rule, or -1. */
static int32_t find_circle(struct left *l, int32_t start) {
    struct clime_expr_list calls = {0}, frames = {0}, work = {0};
    int32_t found = -1;
    l->state[start] = 1;
    clime_expr_list_add(&frames, start);
    clime_expr_list_add(&frames, calls.n);
    left_calls(l, start, &work, &calls);
    while (frames.n > 0 && found < 0) {
        int begin = frames.at[frames.n - 1];
        if (calls.n == begin) {
            l->state[frames.at[frames.n - 2]] = 2;
            frames.n -= 2;
            continue;
        }
        int32_t to = calls.at[--calls.n];
        if (l->state[to] == 1) found = to;
        if (l->state[to]) continue;
        l->state[to] = 1;
        clime_expr_list_add(&frames, to);
        clime_expr_list_add(&frames, calls.n);
        left_calls(l, to, &work, &calls);
    }
    free(calls.at);
    free(frames.at);
    free(work.at);
    return found;
}

/* -1: none; -2: too expensive to decide. */
static int32_t left_recursive(const struct clime_grammar_program *p) {
    struct left l = {.p = p};
    struct sweeps w = {.left = MAX_SWEPT};
    int32_t found = -1;
    l.nullable = xcalloc((size_t)p->n_ops, 1);
    l.state = xcalloc((size_t)p->n_ops, 1);
    l.stamp = xcalloc((size_t)p->n_ops, sizeof *l.stamp);
    for (bool changed = true; changed && found == -1;) {
        changed = false;
        if (!next_sweep(&w, p->n_ops)) found = -2;
        for (int k = 0; k < p->n_ops && found == -1; k++) {
            int i = w.down ? p->n_ops - 1 - k : k;
            if (!l.nullable[i] && is_nullable(&l, i)) l.nullable[i] = changed = true;
        }
    }
    for (int i = 0; i < p->n_ops && found == -1; i++) {
        const struct clime_op *op = &p->ops[i];
        if ((op->kind == CLIME_OP_CALL || op->kind == CLIME_OP_REPEAT) && !l.state[op->a])
            found = find_circle(&l, op->a);
    }
    free(l.nullable);
    free(l.state);
    free(l.stamp);
    return found;
}

/* ---- classes of bytes ---- */

static void find_classes(struct clime_grammar_program *p) {
    memset(p->class_of, 0, sizeof p->class_of);
    p->n_classes = 1;
    for (int s = 0; s < p->n_sets && p->n_classes < 256; s++) {
        int renamed[2][256], n = 0;
        memset(renamed, -1, sizeof renamed);
        for (int b = 0; b < 256; b++) {
            int *to = &renamed[p->sets[s].bits[b >> 5] >> (b & 31) & 1][p->class_of[b]];
            if (*to < 0) *to = n++;
            p->class_of[b] = (uint8_t)*to;
        }
        p->n_classes = n;
    }
}

/* ---- all of it ---- */

static const char *rule_name(const struct compiler *c, int32_t pc) {
    for (int i = 0; i < c->x->n_rules; i++)
        if (c->entry[i] == pc) return c->x->rules[i].name;
    return "a repetition";
}

enum clime_err clime_grammar_program_compile(struct clime_exprs *x, int root, int max_depth,
                                             struct clime_grammar_program *p, struct clime_error *e) {
    struct compiler c = {.x = x, .p = p};
    enum clime_err err = CLIME_OK;
    *p = (struct clime_grammar_program){.max_depth = max_depth};
    CHECK(max_depth <= CLIME_GRAMMAR_MAX_DEPTH);
    c.entry = xmalloc((size_t)(x->n_rules + 1) * sizeof *c.entry);
    for (int i = 0; i < x->n_rules; i++) c.entry[i] = -1;
    emit(&c, (struct clime_op){.kind = CLIME_OP_RET});
    p->start = body_later(&c, root);
    while (c.n_todo > 0 && !c.full && !x->full) {
        int32_t node = c.todo[--c.n_todo].node, pc = c.todo[c.n_todo].pc;
        int32_t body = compile(&c, node, RET_PC);
        if (!c.full) p->ops[pc].a = p->ops[pc].b = body;
    }
    if (c.full || x->full) {
        err = clime_fail(e, CLIME_ERR_LIMIT, "the grammar is too large");
        goto done;
    }
    p->sets = xmalloc((size_t)(x->n_sets + 1) * sizeof *p->sets);
    if (x->n_sets > 0) memcpy(p->sets, x->sets, (size_t)x->n_sets * sizeof *p->sets);
    p->n_sets = x->n_sets;
    find_classes(p);
    int32_t circle = left_recursive(p);
    if (circle >= 0) {
        err = clime_fail(e, CLIME_ERR_INPUT,
                         "%s is left-recursive: it begins with itself; write the repetition with * or +",
                         rule_name(&c, circle));
        goto done;
    }
    if (circle == -2 || !find_needs(p))
        err = clime_fail(e, CLIME_ERR_LIMIT, "the grammar is too large: its rules refer to one another too often");
    else if (p->ops[p->start].need > max_depth)
        err = clime_fail(e, CLIME_ERR_INPUT, "no text of at most %d nested rules fits", max_depth);
done:
    if (err) clime_grammar_program_free(p);
    free(c.memo);
    free(c.entry);
    free(c.todo);
    return err;
}

void clime_grammar_program_free(struct clime_grammar_program *p) {
    free(p->ops);
    free(p->sets);
    *p = (struct clime_grammar_program){.n_ops = 0};
}
