/* LaTeX to plain text, the way pylatexenc's latex2text 2.10 prints it, for the sympy rule. */
#ifndef CLIME_GRADE_LATEX_H
#define CLIME_GRADE_LATEX_H

#include "common/buf.h"
#include "common/str.h"

/* Rewrites t: "\frac{1}{2}\sqrt{3}" -> "1/2sqrt(3)", "\pi" -> "pi", macros of symbols to their character, unknown
 * macros to nothing. Broken input is read as far as it goes. Leaves t as it was where the original throws (a \sqrt
 * without its argument, nesting too deep) or would run away. */
void clime_latex_to_text(struct clime_buf *t);

/* How a macro is read and printed. */
enum clime_latex_form {
    CLIME_LATEX_TEXT,    /* replaced by `text` (%s are the arguments in order) */
    CLIME_LATEX_ROOT,    /* text with its %s replaced by the last argument; not without arguments */
    CLIME_LATEX_LAST,    /* the last argument alone, nothing without */
    CLIME_LATEX_ACCENT,  /* text, a combining character, behind each character of the argument */
    CLIME_LATEX_ALPHABET /* the argument's letters in a mathematical alphabet; text names it */
};
struct clime_latex_macro {
    const char *name;
    const char *args; /* '{' mandatory, '[' optional, '*' a star */
    enum clime_latex_form form;
    const char *text;
};
bool clime_latex_find(struct clime_str name, struct clime_latex_macro *out); /* false when unknown */

#endif
