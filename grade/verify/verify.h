/* Internals of the reward type math_verify, which compares answers as mathematical objects:
 *
 *   verify_extract.c  a text -> the candidate answers, best first
 *   verify_lex.c      an answer -> tokens: LaTeX and plain notation, without decoration
 *   verify_words.c    words among tokens: removes units, joins other words into texts
 *   verify_read.c     tokens -> a tree: numbers, algebra, tuples, sets, intervals, relations, matrices
 *   verify_tree.c     the tree's nodes
 *   verify_matrix.c   products and sums of matrices
 *   verify_value.c    the value of a scalar tree: exact modulo a prime, or complex with an error bound
 *   verify_set.c      sets of real numbers in normal form
 *   verify_equal.c    equality of two trees
 *   verify.c          the reward
 *
 * A struct clime_verify holds one comparison: an arena, a step budget and a deadline in CPU time. Trees are immutable.
 * Exhausting the steps or the arena sets `spent`, and the answers count as not equal, like any unreadable text; passing
 * the deadline sets `late`, an error. Any thread; no other state.
 */
#ifndef CLIME_GRADE_VERIFY_VERIFY_H
#define CLIME_GRADE_VERIFY_VERIFY_H

#include <stdint.h>

#include "common/arena.h"
#include "common/str.h"

#define CLIME_VERIFY_MAX_BYTES 4096 /* of one answer */
#define CLIME_VERIFY_MAX_TOKENS 2048
#define CLIME_VERIFY_MAX_DEPTH 120
#define CLIME_VERIFY_MAX_KIDS 256      /* elements of a set, cells of a matrix */
#define CLIME_VERIFY_MAX_STEPS 2000000 /* nodes read or evaluated: about 0.2 s */
#define CLIME_VERIFY_TIME_US 2000000   /* CPU time; not reached, as the steps run out first */

struct clime_verify {
    struct clime_arena arena;
    int64_t steps, deadline_us;
    bool spent, late;
};

/* The thread's CPU time, the clock of deadline_us. */
int64_t clime_verify_used_us(void);
/* Uses n steps; false when none are left. */
bool clime_verify_step(struct clime_verify *v, int64_t n);

/* ---- tokens ---- */

/* kind: 'n' number, 'a' symbol, 'f' function, 't' text; 'F' \frac, 'R' \sqrt, 'B' \binom, 'M' begin and 'E' end of a
 * matrix, 'W' \\ and '&' within it; 'O' \overline; 'X' \sum and similar; 'S' 'Z' \{ \}; '<' 'L' '>' 'G' '=' '#' '~' the
 * relations < <= > >= = != and "about"; 'P' 'Q' plus-minus and minus-plus; 'U' 'I' 'D' union, intersection, difference;
 * 'i' element of; '8' infinity; '0' the empty set; 'r' the real numbers; 'h' 'H' floor, 'k' 'K' ceiling brackets; any
 * other character is itself. */
struct clime_verify_token {
    char kind;
    bool is_float;         /* a number with a decimal point */
    bool space;            /* white space before it */
    int run;               /* shared by the tokens of one word; 0 = none, -1 = a text of several words */
    struct clime_str text; /* a number's digits, a symbol's or function's name, a text */
};
/* Splits an answer into tokens, in the arena; -1 when it is too long or is prose. prose: words alone are an answer. */
int clime_verify_lex(struct clime_verify *v, struct clime_str s, bool prose, struct clime_verify_token **out);

/* True when a value ends at this token, so a unit may follow. */
bool clime_verify_ends_value(const struct clime_verify_token *t);
/* Joins words into one text ("no solution"), unless they are a symbol and its units; returns the new n. */
int clime_verify_join_words(struct clime_verify *v, struct clime_verify_token *t, int n);
/* Removes units; returns the new n. */
int clime_verify_drop_units(struct clime_verify_token *t, int n);
/* True when two long words remain that are neither units nor from \text{}. words_count: words without numbers and
 * operators are not prose. */
bool clime_verify_is_prose(const struct clime_verify_token *t, int n, bool words_count);

/* ---- trees ---- */

enum clime_verify_kind {
    CLIME_V_NUMBER,   /* name: digits, optional point; base: of \1011_2, 0 = none */
    CLIME_V_SYMBOL,   /* name, also "pi", "e", "i" */
    CLIME_V_TEXT,     /* name: words */
    CLIME_V_INFINITY, /* positive */
    CLIME_V_SUM,      /* kids */
    CLIME_V_PRODUCT,  /* kids */
    CLIME_V_QUOTIENT, /* kid 0 / kid 1 */
    CLIME_V_NEGATE,   /* kid 0 */
    CLIME_V_POWER,    /* kid 0 ^ kid 1 */
    CLIME_V_FACTORIAL,
    CLIME_V_PERCENT,   /* kid 0 / 100 */
    CLIME_V_CALL,      /* name(kids) */
    CLIME_V_SIGNED,    /* kid 0 with op > 0 for plus-minus, < 0 for minus-plus */
    CLIME_V_LIST,      /* kids, separated by commas without brackets */
    CLIME_V_TUPLE,     /* kids in order; two in round brackets may also be an open interval */
    CLIME_V_SET,       /* \{kids\} */
    CLIME_V_INTERVAL,  /* kid 0 to kid 1; op: CLIME_V_OPEN_* */
    CLIME_V_UNION,     /* kids */
    CLIME_V_INTERSECT, /* kids */
    CLIME_V_WITHOUT,   /* kid 0 without kid 1 */
    CLIME_V_REALS,
    CLIME_V_MATRIX,  /* kids by rows; op = columns */
    CLIME_V_RELATION /* kids a op b op c; name: the operators' kinds, one fewer than kids */
};
#define CLIME_V_OPEN_LEFT 1
#define CLIME_V_OPEN_RIGHT 2

struct clime_verify_node {
    enum clime_verify_kind kind;
    int op, base, n;
    bool is_float;
    struct clime_str name;
    const struct clime_verify_node **kid;
};
typedef const struct clime_verify_node *clime_verify_tree; /* NULL = none */

/* A node with n kids (copied); NULL when the arena or the steps are spent, or a kid is NULL. */
clime_verify_tree clime_verify_node(struct clime_verify *v, enum clime_verify_kind kind, struct clime_str name, int op,
                                    int n, const clime_verify_tree *kids);
clime_verify_tree clime_verify_two(struct clime_verify *v, enum clime_verify_kind kind, clime_verify_tree a,
                                   clime_verify_tree b);
clime_verify_tree clime_verify_one(struct clime_verify *v, enum clime_verify_kind kind, clime_verify_tree a);
clime_verify_tree clime_verify_integer(struct clime_verify *v, int64_t n);

/* The tree of an answer, or NULL. prose: words alone are an answer. */
clime_verify_tree clime_verify_read(struct clime_verify *v, struct clime_str s, bool prose);
/* Evaluates sums, products and powers of matrices. */
clime_verify_tree clime_verify_matrices(struct clime_verify *v, clime_verify_tree t);
/* True when the tree contains a node of that kind. */
bool clime_verify_holds(clime_verify_tree t, enum clime_verify_kind kind);

/* ---- values ---- */

/* True when two scalars are equal; an answer's decimals are compared to six places. */
bool clime_verify_scalar_equal(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b);
/* The sign of the constant c with a = c * b, or 0: compares two sides of a relation. */
int clime_verify_ratio(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b);
/* The value of a real constant, infinities included. */
bool clime_verify_real(struct clime_verify *v, clime_verify_tree t, long double *out);

/* ---- sets of real numbers ---- */

struct clime_verify_span { /* lo..hi; a point has lo == hi and both closed */
    long double lo, hi;
    bool lo_open, hi_open;
};
struct clime_verify_set { /* ascending, disjoint */
    struct clime_verify_span *span;
    int n;
};
/* Converts a tree to a set: intervals, unions, one number, a relation in one unknown. False when it is none. */
bool clime_verify_set_of(struct clime_verify *v, clime_verify_tree t, struct clime_verify_set *out);
bool clime_verify_set_equal(const struct clime_verify_set *a, const struct clime_verify_set *b);

/* ---- comparison ---- */

/* True when an answer equals the truth. Not symmetric: an assignment x = 1 equals 1, an equation 2x = 1 does not. */
bool clime_verify_equal(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer);

/* The answer found in a text: a tree or NULL, and the best candidate's raw text. */
struct clime_verify_answer {
    clime_verify_tree tree;
    struct clime_str raw;
};
struct clime_verify_answer clime_verify_extract(struct clime_verify *v, struct clime_str text);
/* Same for a label, which may be the bare answer. */
struct clime_verify_answer clime_verify_label(struct clime_verify *v, struct clime_str text);

#endif
