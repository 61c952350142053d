/* Answer extraction and normalisation: the parts of graders that have published verdicts. Used by the graders, and
 * tested one by one. Pure; any thread.
 */
#ifndef CLIME_GRADE_ANSWER_H
#define CLIME_GRADE_ANSWER_H

#include "common/buf.h"
#include "common/str.h"

/* Finds the last command that begins with `open` ("\\boxed", "\\boxed{", "\\fbox"), up to the brace that closes its
 * first one; false when absent or unclosed. out is a slice of s. */
bool clime_answer_last_command(struct clime_str s, const char *open, struct clime_str *out);

/* The content of the last \boxed{} of a text; false when absent or not of the form \boxed{...}. */
bool clime_answer_boxed(struct clime_str s, struct clime_str *out);

/* "\text{abc}" -> "abc", by ^\\text\{(.+?)\}$; else false and out = s. */
bool clime_answer_unwrap_text(struct clime_str s, struct clime_str *out);

/* The normalisation of the MATH data set's own grader (Hendrycks et al., "Measuring Mathematical Problem Solving",
 * 2021), with its quirks. Rewrites t in place. */
void clime_answer_mathd(struct clime_buf *t);
/* The part of it after removing white space and \text{}; false where the original fails (and the caller keeps the
 * text): a \frac or \sqrt at the very end, "\text{ " twice. */
bool clime_answer_mathd_strip(struct clime_buf *t);

/* The normalisation of Minerva (Lewkowycz et al., 2022, appendix D) as DAPO uses it. */
void clime_answer_minerva(struct clime_buf *t);

/* The normalisation of SQuAD: lower case, no punctuation, no articles, single spaces (Rajpurkar et al., 2016). */
void clime_answer_squad(struct clime_buf *t);
/* Harmonic mean of precision and recall over two raw texts' words; 0 when just one is yes, no or noanswer. */
double clime_answer_f1(struct clime_str prediction, struct clime_str truth);

/* GPQA: the letter of `valid` ("ABCD") that a response chooses, 0 = none. */
char clime_answer_choice(struct clime_str response, const char *valid);

/* mathd equality. */
bool clime_answer_mathd_equal(struct clime_str given, struct clime_str truth);
/* The sympy rule: see rule.c. */
void clime_answer_rule_normalize(struct clime_buf *t);
bool clime_answer_rule_equal(struct clime_str given, struct clime_str truth);

#endif
