/* The checkers behind the reward types ifeval and ifbench. Private to instructions*.c, ifeval.c and ifbench_*.c.
 *
 * A checker says whether a response follows one instruction. It reads the arguments of its instruction from `kwargs`;
 * one that is missing or of the wrong kind is noted in `missing` and makes the whole an error, never a reward. Pure;
 * any thread; linear in the response but where a comment says otherwise.
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
    bool (*follows)(struct clime_instruction *in); /* NULL: known, but it needs what clime does not have (why) */
    const char *why;
};
/* Each ends with id NULL. */
extern const struct clime_instruction_checker clime_ifeval_checkers[], clime_ifbench_word_checkers[],
    clime_ifbench_form_checkers[];

/* Arguments. A text is "" and a number 0 when it is missing. */
struct clime_str clime_instruction_text(struct clime_instruction *in, const char *name);
double clime_instruction_number(struct clime_instruction *in, const char *name);
const struct cJSON *clime_instruction_list(struct clime_instruction *in, const char *name); /* of texts */

/* The next word of Python's split(): false when there is none. */
bool clime_instruction_word(struct clime_str *rest, struct clime_str *word);
/* The next piece of Python's split(mark): false after the last one. *rest.ptr is NULL then. */
bool clime_instruction_piece(struct clime_str *rest, const char *mark, struct clime_str *piece);
bool clime_instruction_is_punctuation(char c);
struct clime_str clime_instruction_strip(struct clime_str s, bool left, bool right); /* punctuation and spaces */
size_t clime_instruction_count_words(struct clime_str s); /* runs of letters, digits, underscores */
/* How often word stands in s as a whole word (\b on both sides); both in lower case or neither. */
size_t clime_instruction_count_whole(struct clime_str s, struct clime_str word);
/* Whether two texts are the same in lower case. */
bool clime_instruction_same_lower(struct clime_str a, struct clime_str b);
/* The runs of digits in s, up to max of them into out; returns how many in all. */
size_t clime_instruction_numbers(struct clime_str s, struct clime_str *out, size_t max);
/* All words of a text; w is the caller's to free. */
struct clime_instruction_words {
    struct clime_str *w;
    size_t n;
};
struct clime_instruction_words clime_instruction_words_of(struct clime_str s);
/* s without ASCII punctuation, into out. */
void clime_instruction_without_punctuation(struct clime_buf *out, struct clime_str s);

#endif
