/* The checkers of the reward types ifeval and ifbench. Private to instructions*.c, ifeval.c and ifbench_*.c.
 *
 * A checker tests whether a response follows one instruction. It reads the instruction's arguments from `kwargs`; a
 * missing or mistyped one sets `missing` and makes the result an error, never a reward. Pure; any thread; linear in the
 * response unless a comment says otherwise.
 */
#ifndef CLIME_GRADE_INSTRUCTIONS_H
#define CLIME_GRADE_INSTRUCTIONS_H

#include "common/buf.h"
#include "common/json/tree.h"
#include "common/str.h"

struct clime_instruction {
    struct clime_str response;
    struct clime_str lower;     /* the response in lower case */
    const struct cJSON *kwargs; /* NULL = none */
    const char *missing;
};

struct clime_instruction_checker {
    const char *id;
    bool (*follows)(struct clime_instruction *in); /* NULL: known but unsupported (why) */
    const char *why;
};
/* Each table ends with id NULL. */
extern const struct clime_instruction_checker clime_ifeval_checkers[], clime_ifbench_word_checkers[],
    clime_ifbench_form_checkers[];

/* Reads an argument; "" or 0 when missing. */
struct clime_str clime_instruction_text(struct clime_instruction *in, const char *name);
double clime_instruction_number(struct clime_instruction *in, const char *name);
const struct cJSON *clime_instruction_list(struct clime_instruction *in, const char *name); /* a list of strings */

/* Next word of Python's split(); false at the end. */
bool clime_instruction_word(struct clime_str *rest, struct clime_str *word);
/* Next piece of Python's split(mark); false after the last one, when *rest.ptr is NULL. */
bool clime_instruction_piece(struct clime_str *rest, const char *mark, struct clime_str *piece);
bool clime_instruction_is_punctuation(char c);
struct clime_str clime_instruction_strip(struct clime_str s, bool left, bool right); /* punctuation and spaces */
size_t clime_instruction_count_words(struct clime_str s); /* runs of letters, digits, underscores */
/* Counts word in s as a whole word (\b on both sides); both in lower case or neither. */
size_t clime_instruction_count_whole(struct clime_str s, struct clime_str word);
/* True when two texts are equal in lower case. */
bool clime_instruction_same_lower(struct clime_str a, struct clime_str b);
/* Stores the first max runs of digits in s to out; returns the total. */
size_t clime_instruction_numbers(struct clime_str s, struct clime_str *out, size_t max);
/* All words of a text; the caller frees w. */
struct clime_instruction_words {
    struct clime_str *w;
    size_t n;
};
struct clime_instruction_words clime_instruction_words_of(struct clime_str s);
/* s without ASCII punctuation, into out. */
void clime_instruction_without_punctuation(struct clime_buf *out, struct clime_str s);

#endif
