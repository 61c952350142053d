/* LaTeX to text (see latex.h). Called by rule.c, any thread; owns nothing beyond the call.
 *
 * One pass that prints while parsing. Broken input is handled like pylatexenc: a stray closing brace is skipped, the
 * text's end closes a group, and a macro that lacks an argument at the end of the text is printed without it while its
 * other arguments are parsed again as plain text. That doubles the work per nesting level, so steps are limited
 * (MAX_STEPS per byte).
 */
#include "grade/latex.h"

#include "common/err.h"
#include "grade/text.h"
#include "text/normalize.h"
#include "text/unicode.h"

#define MAX_DEPTH 100
#define MAX_STEPS 64
#define MAX_ARGS 5

struct matrix {
    size_t cell; /* where the current cell begins in out */
    bool has_node;
    int n_cells;
};

struct scope {            /* what ends the current list of nodes */
    char close;           /* '}' or ']', 0 = none */
    struct clime_str env; /* name of the environment, len 0 = none */
    char math;            /* ')' or ']' of "\)" and "\]", 0 = none */
    struct matrix *matrix;
};

struct reader {
    struct clime_str s;
    size_t at;
    struct clime_buf *out;
    int depth;
    size_t steps;
    bool math;   /* inside a formula: drops spaces between parts, but not after a bare macro */
    bool thrown; /* the original throws here: keep the text */
};

static void nodes(struct reader *r, const struct scope *scope);

static bool step(struct reader *r) {
    if (r->steps-- == 0) r->thrown = true, r->steps = 0;
    return !r->thrown;
}

static size_t skip_space(const struct reader *r, size_t at) {
    size_t n;
    while (at < r->s.len && clime_rtext_is_space(clime_rtext_char(r->s, at, &n))) at += n;
    return at;
}

/* The name of the macro at s[at] == '\\' (one character, or letters); *end is after it and the white space that letters
 * swallow. False at the end of the text. */
static bool macro_name(const struct reader *r, size_t at, struct clime_str *name, size_t *end) {
    size_t from = at + 1, i = from, n;
    if (from >= r->s.len) return false;
    bool letters = clime_rtext_is_alpha(clime_rtext_char(r->s, i, &n));
    for (i += n; letters && i < r->s.len && clime_rtext_is_alpha(clime_rtext_char(r->s, i, &n));) i += n;
    *name = clime_rtext_slice(r->s, from, i);
    *end = letters ? skip_space(r, i) : i;
    const char *paragraph = *end > i ? memmem(r->s.ptr + i, *end - i, "\n\n", 2) : NULL;
    if (paragraph) *end = (size_t)(paragraph - r->s.ptr); /* an empty line is not swallowed */
    return true;
}

/* "{name}" after \begin or \end, at r->at. */
static bool environment_name(struct reader *r, struct clime_str *name) {
    size_t i = skip_space(r, r->at), from, n;
    if (i >= r->s.len || r->s.ptr[i] != '{') return false;
    for (from = ++i; i < r->s.len; i += n) {
        uint32_t c = clime_rtext_char(r->s, i, &n);
        if (!clime_rtext_is_word(c) && !(c < 0x80 && strchr("* .-", (int)c))) break;
    }
    if (i == from || i >= r->s.len || r->s.ptr[i] != '}') return false;
    *name = clime_rtext_slice(r->s, from, i);
    r->at = i + 1;
    return true;
}

/* Strips the output from `from` on. */
static void strip_tail(struct clime_buf *out, size_t from) {
    if (out->len == from) return;
    struct clime_str s = clime_rtext_strip(clime_rtext_slice(clime_buf_str(out), from, out->len));
    memmove(out->data + from, s.ptr, s.len);
    out->len = from + s.len;
    out->data[out->len] = 0;
}

static void group(struct reader *r, char close) {
    struct scope inner = {.close = close};
    r->at++;
    nodes(r, &inner);
}

/* "``", "''", "--", "---", "!`", "?`", "~", "&": printed as one character. Returns the length, 0 = none. */
static size_t special(const struct reader *r, size_t at, const char **text) {
    static const struct clime_replacement signs[] = {
        {"&", "   "}, {"~", "\u00a0"}, {"``", "“"}, {"''", "”"}, {"---", "—"}, {"--", "–"}, {"!`", "¡"}, {"?`", "¿"},
    };
    struct clime_str rest = clime_rtext_slice(r->s, at, r->s.len);
    for (size_t i = 0; i < CLIME_COUNT(signs); i++)
        if (clime_str_starts(rest, signs[i].from)) {
            *text = signs[i].to;
            return strlen(signs[i].from);
        }
    return 0;
}

/* Prints the letters of arg in a mathematical alphabet (Unicode block 1D400, and letters encoded elsewhere earlier). */
static void print_alphabet(struct clime_buf *out, struct clime_str arg, const char *style) {
    static const struct alphabet {
        const char *name;
        uint32_t upper, lower;
        const char *letters; /* each maps to the code point at the same index in other */
        uint16_t other[11];
    } alphabets[] = {
        {"bold", 0x1D400, 0x1D41A, "", {0}},
        {"italic", 0x1D434, 0x1D44E, "h", {0x210E}},
        {"script",
         0x1D49C,
         0x1D4B6,
         "BEFHILMRego",
         {0x212C, 0x2130, 0x2131, 0x210B, 0x2110, 0x2112, 0x2133, 0x211B, 0x212F, 0x210A, 0x2134}},
        {"fraktur", 0x1D504, 0x1D51E, "CHIRZ", {0x212D, 0x210C, 0x2111, 0x211C, 0x2128}},
        {"doublestruck", 0x1D538, 0x1D552, "CHNPQRZ", {0x2102, 0x210D, 0x2115, 0x2119, 0x211A, 0x211D, 0x2124}},
        {"sans", 0x1D5A0, 0x1D5BA, "", {0}},
        {"monospace", 0x1D670, 0x1D68A, "", {0}},
    };
    const struct alphabet *a = alphabets;
    while (strcmp(a->name, style) != 0) a++;
    for (size_t i = 0; i < arg.len; i++) {
        char c = arg.ptr[i], utf8[4];
        const char *odd = c ? strchr(a->letters, c) : NULL;
        uint32_t cp = odd                    ? a->other[odd - a->letters]
                      : c >= 'A' && c <= 'Z' ? a->upper + (uint32_t)(c - 'A')
                      : c >= 'a' && c <= 'z' ? a->lower + (uint32_t)(c - 'a')
                                             : 0;
        if (cp)
            clime_buf_add(out, utf8, (size_t)clime_unicode_put((int32_t)cp, utf8));
        else
            clime_buf_addc(out, c);
    }
}

/* Prints each character with the combining mark, composed. */
static void print_accent(struct clime_buf *out, struct clime_str arg, const char *mark) {
    char pair[16];
    struct clime_norm_scratch scratch;
    clime_norm_scratch_init(&scratch);
    arg = clime_rtext_strip(arg);
    for (size_t i = 0, n; i < arg.len; i += n) {
        clime_rtext_char(arg, i, &n);
        struct clime_str one = clime_rtext_slice(arg, i, i + n);
        if (clime_str_is(one, "ı")) one = clime_str_of("i");
        if (clime_str_is(one, "ȷ")) one = clime_str_of("j");
        size_t len = strlen(mark);
        memcpy(pair, one.ptr, one.len);
        memcpy(pair + one.len, mark, len);
        struct clime_str text = {pair, one.len + len};
        clime_normalize_form(text, CLIME_NFC, &scratch, out);
    }
    clime_norm_scratch_free(&scratch);
}

/* args: n texts; n == 0: a macro without its arguments. */
static void print_macro(struct reader *r, const struct clime_latex_macro *m, const struct clime_buf *args, int n) {
    struct clime_buf *out = r->out;
    bool bare = n == 0 && m->args[0];
    struct clime_str last = n ? clime_buf_str(&args[n - 1]) : clime_str_of("");
    switch (m->form) {
    case CLIME_LATEX_ROOT:
        if (bare) r->thrown = true;
        /* fall through */
    case CLIME_LATEX_TEXT: {
        int next = m->form == CLIME_LATEX_ROOT ? n - 1 : 0;
        for (const char *p = m->text; *p; p++) {
            bool place = p[0] == '%' && p[1] == 's' && !bare;
            if (!place) {
                clime_buf_addc(out, *p);
                continue;
            }
            clime_buf_add(out, clime_buf_str(&args[next]).ptr, args[next].len);
            next++;
            p++;
        }
        break;
    }
    case CLIME_LATEX_LAST:
        clime_buf_add(out, last.ptr, last.len);
        break;
    case CLIME_LATEX_ACCENT:
        if (bare)
            clime_buf_printf(out, " %s", m->text);
        else
            print_accent(out, last, m->text);
        break;
    case CLIME_LATEX_ALPHABET:
        print_alphabet(out, last, m->text);
        break;
    }
}

/* One mandatory argument: a group, a macro without its own arguments, or one character. False at the end. */
static bool mandatory(struct reader *r) {
    struct clime_str name;
    struct clime_latex_macro m;
    const char *text;
    size_t at = skip_space(r, r->at), n;
    if (at >= r->s.len) return false;
    char c = r->s.ptr[at];
    if (c == '\\') {
        if (!macro_name(r, at, &name, &n)) return false;
        if (clime_str_is(name, "end")) return true; /* not consumed, like a closing brace */
        r->at = n;
        if (clime_latex_find(name, &m)) print_macro(r, &m, NULL, 0);
        return true;
    }
    if (c == '}') return true;
    r->at = at;
    if (c == '{') {
        group(r, '}');
    } else if ((n = special(r, at, &text)) > 0) {
        clime_buf_adds(r->out, text);
        r->at += n;
    } else {
        clime_rtext_char(r->s, at, &n);
        clime_buf_add(r->out, r->s.ptr + at, n);
        r->at += n;
    }
    return true;
}

/* Parses the arguments of `spec` and prints each into args; false when a mandatory one is missing at the end of the
 * text. no_space: an optional one must follow at once. */
static bool arguments(struct reader *r, const char *spec, bool no_space, struct clime_buf *args, int *n) {
    struct clime_buf *out = r->out;
    bool complete = true;
    for (*n = 0; spec[*n] && complete; ++*n) {
        clime_buf_init(&args[*n], out->cap);
        r->out = &args[*n];
        size_t at = skip_space(r, r->at);
        char next = at < r->s.len ? r->s.ptr[at] : 0;
        if (spec[*n] == '{') {
            complete = mandatory(r);
        } else if (spec[*n] == '*' && next == '*') {
            r->at = at + 1;
        } else if (spec[*n] == '[' && next == '[' && (!no_space || at == r->at)) {
            r->at = at;
            group(r, ']');
        }
    }
    r->out = out;
    return complete;
}

static void macro(struct reader *r, struct clime_str name, size_t end) {
    struct clime_latex_macro m;
    struct clime_buf args[MAX_ARGS];
    int n = 0;
    r->at = end;
    if (!clime_latex_find(name, &m)) return;
    if (arguments(r, m.args, clime_str_is(name, "\\"), args, &n)) {
        print_macro(r, &m, args, n);
    } else {
        r->at = end; /* its arguments are parsed again as text */
        print_macro(r, &m, NULL, 0);
    }
    while (n-- > 0) clime_buf_free(&args[n]);
}

static bool is_one_of(struct clime_str name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (clime_str_is(name, list[i])) return true;
    return false;
}

static void end_cell(struct reader *r, struct matrix *m, const char *separator) {
    strip_tail(r->out, m->cell);
    m->n_cells += m->has_node;
    m->has_node = false;
    clime_buf_adds(r->out, separator);
    m->cell = r->out->len;
}

static void formula(struct reader *r, const struct scope *inner, bool display) {
    bool outside = r->math;
    if (display) clime_buf_addc(r->out, '\n');
    size_t from = r->out->len;
    r->math = true;
    nodes(r, inner);
    r->math = outside;
    strip_tail(r->out, from);
    if (display) clime_buf_addc(r->out, '\n');
}

static void environment(struct reader *r, struct clime_str name) {
    static const char *const matrices[] = {"array",       "pmatrix",      "bmatrix",
                                           "smallmatrix", "psmallmatrix", "bsmallmatrix"};
    static const char *const displays[] = {"equation", "equation*", "eqnarray", "eqnarray*", "align", "align*",
                                           "multline", "multline*", "gather",   "gather*",   "dmath", "dmath*"};
    static const char *const with_argument[] = {"array", "tabular", "alignat", "alignat*"};
    struct clime_buf args[MAX_ARGS];
    struct matrix m = {.n_cells = 0};
    struct scope inner = {.env = name};
    size_t at = r->at;
    int n = 0;
    if (is_one_of(name, with_argument, CLIME_COUNT(with_argument))) {
        if (!arguments(r, clime_str_is(name, "array") ? "[{" : "{", false, args, &n)) r->at = at;
        while (n-- > 0) clime_buf_free(&args[n]);
    }
    if (is_one_of(name, matrices, CLIME_COUNT(matrices))) {
        clime_buf_adds(r->out, "[ ");
        m.cell = r->out->len;
        inner.matrix = &m;
        nodes(r, &inner);
        end_cell(r, &m, " ]");
        if (m.n_cells == 0) r->thrown = true;
        return;
    }
    if (is_one_of(name, displays, CLIME_COUNT(displays)))
        formula(r, &inner, true);
    else
        nodes(r, &inner);
}

/* Parses a command, which begins with a backslash; true when it ends the scope. */
static bool command(struct reader *r, const struct scope *scope) {
    struct clime_str name, env;
    size_t end;
    if (!macro_name(r, r->at, &name, &end)) {
        r->at = r->s.len;
        return true;
    }
    char c = name.ptr[0];
    bool begin = clime_str_is(name, "begin");
    if (name.len == 1 && strchr("()[]", c)) {
        r->at = end;
        if (c == ')' || c == ']') return c == scope->math;
        struct scope inner = {.math = c == '(' ? ')' : ']'};
        formula(r, &inner, c == '[');
    } else if (begin || clime_str_is(name, "end")) {
        r->at += 1 + name.len;
        bool named = environment_name(r, &env);
        if (named && !begin) return scope->env.len && clime_str_eq(env, scope->env); /* skip another's end */
        if (named)
            environment(r, env);
        else
            clime_buf_adds(r->out, begin ? "\\begin" : "\\end");
    } else if (scope->matrix && name.len == 1 && c == '\\') {
        struct clime_buf args[MAX_ARGS];
        int n = 0;
        r->at = end;
        arguments(r, "*[", true, args, &n);
        while (n-- > 0) clime_buf_free(&args[n]);
        end_cell(r, scope->matrix, "; ");
        return false;
    } else {
        macro(r, name, end);
    }
    if (scope->matrix) scope->matrix->has_node = true;
    return false;
}

/* True when s[at] is a plain character in this scope, or the end of the text. */
static bool is_plain(const struct reader *r, size_t at, const struct scope *scope) {
    const char *text;
    if (at >= r->s.len) return true;
    if (scope->close == ']' && strchr("[]", r->s.ptr[at])) return false;
    return !strchr("\\{}", r->s.ptr[at]) && !special(r, at, &text);
}

static void nodes(struct reader *r, const struct scope *scope) {
    const char *text;
    size_t n;
    bool after_plain = false; /* the current node is text */
    struct clime_str behind_macro = {"", 0};
    if (++r->depth > MAX_DEPTH) r->thrown = true;
    while (r->at < r->s.len && step(r)) {
        char c = r->s.ptr[r->at];
        bool bracket = scope->close == ']';
        if (is_plain(r, r->at, scope)) {
            size_t end = skip_space(r, r->at);
            if (end == r->at) {
                clime_rtext_char(r->s, end, &n);
                end += n;
                clime_buf_add(r->out, behind_macro.ptr, behind_macro.len);
                after_plain = true;
            }
            if (!r->math || after_plain || is_plain(r, end, scope))
                clime_buf_add(r->out, r->s.ptr + r->at, end - r->at);
            r->at = end;
            behind_macro.len = 0;
            if (scope->matrix) scope->matrix->has_node = true;
            continue;
        }
        after_plain = false;
        behind_macro.len = 0;
        if (c == '\\') {
            struct clime_str name;
            struct clime_latex_macro m;
            bool bare = r->math && macro_name(r, r->at, &name, &n) && (!clime_latex_find(name, &m) || !m.args[0]);
            if (command(r, scope)) break;
            if (bare && r->at == n) behind_macro = clime_rtext_slice(r->s, (size_t)(name.ptr - r->s.ptr) + name.len, n);
        } else if (c == '}' || (bracket && c == ']')) {
            r->at++;
            if (c == scope->close) break;
        } else if (scope->matrix && c == '&') {
            r->at++;
            end_cell(r, scope->matrix, " ");
        } else {
            if (scope->matrix) scope->matrix->has_node = true;
            if (c == '{' || (bracket && c == '[')) {
                group(r, c == '{' ? '}' : ']');
            } else if ((n = special(r, r->at, &text)) > 0) {
                clime_buf_adds(r->out, text);
                r->at += n;
            }
        }
    }
    r->depth--;
}

void clime_latex_to_text(struct clime_buf *t) {
    static const struct clime_replacement before[] = {
        {"\\tfrac", "\\frac"}, {"\\dfrac", "\\frac"}, {"\\frac", " \\frac"}}; /* the space is for mixed numbers */
    static const struct clime_replacement after[] = {{"√", "sqrt"}, {"π", "pi"}, {"∞", "inf"},
                                                     {"∪", "U"},    {"·", "*"},  {"×", "*"}};
    struct clime_buf source, out;
    struct scope whole = {.close = 0};
    clime_rtext_init(&source, clime_buf_str(t));
    clime_rtext_replace_all(&source, before, CLIME_COUNT(before));
    clime_buf_init(&out, t->cap);
    struct reader r = {.s = clime_buf_str(&source), .out = &out, .steps = MAX_STEPS * source.len + 1000};
    nodes(&r, &whole);
    if (!r.thrown) {
        clime_rtext_replace_all(&out, after, CLIME_COUNT(after));
        clime_rtext_set(t, clime_rtext_strip(clime_buf_str(&out)));
    }
    clime_buf_free(&source);
    clime_buf_free(&out);
}
