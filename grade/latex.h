/* LaTeX to plain text like pylatexenc's latex2text 2.10, for the sympy rule. */
#ifndef CLIME_GRADE_LATEX_H
#define CLIME_GRADE_LATEX_H

#include "common/buf.h"
#include "common/str.h"

/* Rewrites t: "\frac{1}{2}\sqrt{3}" -> "1/2sqrt(3)", "\pi" -> "pi", symbol macros to their character, unknown macros to
 * nothing. Broken input is converted as far as possible. t is unchanged where the original throws (a \sqrt without its
 * argument, nesting too deep) or would not end. */
void clime_latex_to_text(struct clime_buf *t);

/* How to parse and print a macro. */
enum clime_latex_form {
    CLIME_LATEX_TEXT,    /* replaced by `text` (%s are the arguments in order) */
    CLIME_LATEX_ROOT,    /* text with %s replaced by the last argument; requires arguments */
    CLIME_LATEX_LAST,    /* the last argument, or nothing */
    CLIME_LATEX_ACCENT,  /* appends text, a combining character, to each character of the argument */
    CLIME_LATEX_ALPHABET /* the argument's letters in the mathematical alphabet that text names */
};
struct clime_latex_macro {
    const char *name;
    const char *args; /* '{' mandatory, '[' optional, '*' a star */
    enum clime_latex_form form;
    const char *text;
};
bool clime_latex_find(struct clime_str name, struct clime_latex_macro *out); /* false when unknown */

#endif
