/* The pieces of the graders that have published verdicts of their own: extraction of the answer and its
 * normalisations. Used by the graders and checked one by one in tests. Pure; any thread.
 */
#ifndef CLIME_GRADE_ANSWER_H
#define CLIME_GRADE_ANSWER_H

#include "common/buf.h"
#include "common/str.h"

/* The last command that begins with open ("\\boxed", "\\boxed{", "\\fbox"), up to the brace that closes its first
 * one; false when there is none or it never closes. out is a slice of s. */
bool clime_answer_last_command(struct clime_str s, const char *open, struct clime_str *out);

/* The content of the last \boxed{} of a text; false when there is none, or it is not of the form \boxed{...}. */
bool clime_answer_boxed(struct clime_str s, struct clime_str *out);

/* "\text{abc}" -> "abc", as ^\\text\{(.+?)\}$ finds it; false and out = s otherwise. */
bool clime_answer_unwrap_text(struct clime_str s, struct clime_str *out);

/* The normalisation of the MATH data set's own grader (Hendrycks et al., "Measuring Mathematical Problem Solving",
 * 2021), with its quirks: t is rewritten in place. */
void clime_answer_mathd(struct clime_buf *t);
/* The part of it after white space and \text{} are taken off; false where the original gives up (and the caller
 * keeps the text as it was): a \frac or \sqrt at the very end, "\text{ " twice. */
bool clime_answer_mathd_strip(struct clime_buf *t);

/* The normalisation of Minerva (Lewkowycz et al., 2022, appendix D) as DAPO uses it. */
void clime_answer_minerva(struct clime_buf *t);

/* SQuAD's: lower case, no punctuation, no articles, single spaces (Rajpurkar et al., 2016). */
void clime_answer_squad(struct clime_buf *t);
/* Harmonic mean of precision and recall over the multisets of words; 0 unless both or neither are one of yes, no,
 * noanswer. Both texts raw. */
double clime_answer_f1(struct clime_str prediction, struct clime_str truth);

/* GPQA: the letter that a response chooses among valid ("ABCD"), 0 when none. */
char clime_answer_choice(struct clime_str response, const char *valid);

/* mathd equality. */
bool clime_answer_mathd_equal(struct clime_str given, struct clime_str truth);
/* The sympy rule: see rule.c. */
void clime_answer_rule_normalize(struct clime_buf *t);
bool clime_answer_rule_equal(struct clime_str given, struct clime_str truth);

#endif
