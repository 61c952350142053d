/* Lexer of answers (see verify.h). Called by verify_read.c, any thread; tokens are in the comparison's arena.
 *
 * Drops LaTeX that only changes the look (\left, \displaystyle, \,, fonts), and units after a number (verify_words.c).
 * A text-mode command (\text{..}) is lexed like its content; only words without a digit or operator become a text. The
 * non-obvious choice: a word of plain letters is a product of symbols, as in LaTeX, unless it is a known name; two long
 * unknown words make a text with mathematics prose, which is no answer.
 */
#include <stdlib.h>

#include "common/err.h"
#include "grade/text.h"
#include "grade/verify/verify.h"

#define MAX_TEXTS 16 /* nesting limit */

struct lexer {
    struct clime_verify *v;
    struct clime_str s;
    size_t at;
    struct clime_verify_token *t;
    int n, runs;
    int brackets; /* depth of ( [ \{, in which a comma always separates */
    int depth;    /* nesting of text-mode commands */
    bool failed;
};

static const struct {
    const char *name;
    char kind;
    const char *text;
} COMMANDS[] = {
    {"frac", 'F', ""},
    {"dfrac", 'F', ""},
    {"tfrac", 'F', ""},
    {"cfrac", 'F', ""},
    {"sqrt", 'R', ""},
    {"binom", 'B', ""},
    {"dbinom", 'B', ""},
    {"tbinom", 'B', ""},
    {"overline", 'O', ""},
    {"cdot", '*', ""},
    {"times", '*', ""},
    {"ast", '*', ""},
    {"div", '/', ""},
    {"pm", 'P', ""},
    {"mp", 'Q', ""},
    {"le", 'L', ""},
    {"leq", 'L', ""},
    {"leqslant", 'L', ""},
    {"ge", 'G', ""},
    {"geq", 'G', ""},
    {"geqslant", 'G', ""},
    {"lt", '<', ""},
    {"gt", '>', ""},
    {"ne", '#', ""},
    {"neq", '#', ""},
    {"approx", '~', ""},
    {"sim", '~', ""},
    {"equiv", '=', ""},
    {"cup", 'U', ""},
    {"cap", 'I', ""},
    {"setminus", 'D', ""},
    {"backslash", 'D', ""},
    {"in", 'i', ""},
    {"infty", '8', ""},
    {"emptyset", '0', ""},
    {"varnothing", '0', ""},
    {"{", 'S', ""},
    {"}", 'Z', ""},
    {"lbrace", 'S', ""},
    {"rbrace", 'Z', ""},
    {"lbrack", '[', ""},
    {"rbrack", ']', ""},
    {"langle", '(', ""},
    {"rangle", ')', ""},
    {"lfloor", 'h', ""},
    {"rfloor", 'H', ""},
    {"lceil", 'k', ""},
    {"rceil", 'K', ""},
    {"vert", '|', ""},
    {"lvert", '|', ""},
    {"rvert", '|', ""},
    {"mid", '|', ""},
    {"|", '|', ""},
    {"%", '%', ""},
    {"colon", ':', ""},
    {"prime", '\'', ""},
    {"sum", 'X', "sum"},
    {"prod", 'X', "prod"},
    {"int", 'X', "int"},
    {"lim", 'X', "lim"},
    {"epsilon", 'a', "epsilon"},
    {"varepsilon", 'a', "epsilon"},
    {"varphi", 'a', "phi"},
    {"varpi", 'a', "pi"},
    {"imath", 'a', "i"},
};
static const char *const FUNCTIONS[] = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh",   "cosh", "tanh", "ln",
    "log", "exp", "lg",  "gcd", "lcm", "max", "min",    "det",    "arsinh", "arcosh", "artanh", "asin", "acos", "atan"};
/* Dropped commands; an argument stays ("\mathbf{x}" is x). */
static const char *const LOOKS[] = {
    "left",         "right",        "big",         "Big",          "bigg",      "Bigg",       "bigl",      "bigr",
    "Bigl",         "Bigr",         "biggl",       "biggr",        "Biggl",     "Biggr",      "mleft",     "mright",
    "displaystyle", "textstyle",    "scriptstyle", "limits",       "nolimits",  "quad",       "qquad",     "thinspace",
    "enspace",      "medspace",     "thickspace",  "negthinspace", "boxed",     "fbox",       "underline", "uline",
    "mathbf",       "mathit",       "boldsymbol",  "bm",           "pmb",       "mathcal",    "mathscr",   "mathsf",
    "mathtt",       "mathfrak",     "mathnormal",  "mathop",       "mathord",   "ensuremath", "bf",        "it",
    "rm",           "tt",           "sf",          "sc",           "sl",        "em",         "bfseries",  "itshape",
    "rmfamily",     "tiny",         "small",       "normalsize",   "large",     "Large",      "LARGE",     "huge",
    "Huge",         "footnotesize", "degree",      "circ",         "therefore", "ldots",      "dots",      "cdots",
    "hline",        "strut",        "pounds",      "euro",         "yen"};
/* Commands dropped with their first argument: it is invisible, a colour or a length. */
static const char *const UNSEEN[] = {"phantom", "hphantom",  "vphantom", "hspace", "vspace",
                                     "color",   "textcolor", "colorbox", "label",  "tag"};
/* Symbol-class commands, replaced by their argument. */
static const char *const CLASSES[] = {"mathbin", "mathrel", "mathpunct", "mathopen", "mathclose"};
static const char *const TEXTS[] = {"text",       "mathrm", "textbf", "textit",      "mbox",   "textrm",
                                    "textnormal", "hbox",   "textsf", "texttt",      "textsc", "textup",
                                    "textsl",     "textmd", "emph",   "operatorname"};
static const struct {
    const char *utf8, *latex;
} CHARACTERS[] = {{"×", "*"},           {"÷", "/"},        {"·", "*"},        {"−", "-"},     {"–", "-"},
                  {"π", "\\pi "},       {"√", "\\sqrt "},  {"≤", "\\le "},    {"≥", "\\ge "}, {"≠", "\\ne "},
                  {"∞", "\\infty "},    {"∪", "\\cup "},   {"∩", "\\cap "},   {"∈", "\\in "}, {"±", "\\pm "},
                  {"≈", "\\approx "},   {"°", ""},         {"²", "^2"},       {"³", "^3"},    {"ℝ", "\\mathbb{R}"},
                  {"∅", "\\emptyset "}, {"θ", "\\theta "}, {"$", ""},         {"\"", ""},     {"~", " "},
                  {"\n", " "},          {"\t", " "},       {"，", ","},       {"！", "!"},    {"₂", "_2"},
                  {"：", ":"},          {"€", ""},         {"£", ""},         {"¥", ""},      {"₹", ""},
                  {"％", "%"},          {"‐", "-"},        {"\xc2\xa0", " "}, {"’", "'"}};

static bool is_one_of(struct clime_str s, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (clime_str_is(s, list[i])) return true;
    return false;
}

static void one_token(struct lexer *l);

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char at(const struct lexer *l, size_t i) {
    return l->at + i < l->s.len ? l->s.ptr[l->at + i] : 0;
}

static struct clime_verify_token *add(struct lexer *l, char kind, struct clime_str text, bool space) {
    if (l->n == CLIME_VERIFY_MAX_TOKENS || !clime_verify_step(l->v, 1)) {
        l->failed = true;
        return NULL;
    }
    struct clime_verify_token *t = &l->t[l->n++];
    *t = (struct clime_verify_token){.kind = kind, .text = text, .space = space};
    return t;
}

/* The length of a thousands separator at offset i, which three digits must follow; 0 = none. */
static size_t thousands_mark(const struct lexer *l, size_t i) {
    size_t from = i;
    struct clime_str rest = clime_rtext_slice(l->s, l->at + i, l->s.len);
    if (clime_str_starts(rest, "\\,") || clime_str_starts(rest, "\\!") || clime_str_starts(rest, "\\ ")) {
        i += 2;
    } else if (clime_str_starts(rest, ",\\!")) {
        i += 3;
    } else if (at(l, i) == ',') {
        if (l->brackets) return 0;
        i++;
    } else {
        while (at(l, i) == ' ') i++;
        if (at(l, i) == '{') {
            for (i++; at(l, i) == ' ';) i++;
            if (at(l, i) != ',') return 0;
            for (i++; at(l, i) == ' ';) i++;
            if (at(l, i) != '}') return 0;
            for (i++; at(l, i) == ' ';) i++;
        } else if (i != from + 1) {
            return 0; /* neither a brace nor one space */
        }
    }
    for (size_t k = 0; k < 3; k++)
        if (!clime_rtext_is_digit(at(l, i + k))) return 0;
    return clime_rtext_is_digit(at(l, i + 3)) ? 0 : i - from;
}

static void number(struct lexer *l, bool space) {
    char *digits = clime_arena_alloc(&l->v->arena, l->s.len - l->at + 1);
    size_t n = 0, i = 0, mark;
    bool is_float = false;
    if (!digits) {
        l->failed = true;
        return;
    }
    while (clime_rtext_is_digit(at(l, i))) digits[n++] = at(l, i++);
    if (n >= 1 && n <= 3 && digits[0] != '0')
        while ((mark = thousands_mark(l, i)))
            for (i += mark; clime_rtext_is_digit(at(l, i));) digits[n++] = at(l, i++);
    if (at(l, i) == '.' && (clime_rtext_is_digit(at(l, i + 1)) || (n && at(l, i + 1) == '\\'))) {
        is_float = true;
        for (digits[n++] = '.', i++; clime_rtext_is_digit(at(l, i));) digits[n++] = at(l, i++);
    }
    l->at += i;
    struct clime_verify_token *t = add(l, 'n', (struct clime_str){digits, n}, space);
    if (t) t->is_float = is_float;
}

/* The length of a non-ASCII character at offset i that is part of a word; 0 = none. */
static size_t foreign_letter(const struct lexer *l, size_t i) {
    struct clime_str rest = clime_rtext_slice(l->s, l->at + i, l->s.len);
    size_t len;
    if (!(at(l, i) & 0x80)) return 0;
    for (size_t k = 0; k < CLIME_COUNT(CHARACTERS); k++)
        if (clime_str_starts(rest, CHARACTERS[k].utf8)) return 0;
    return clime_rtext_is_alpha(clime_rtext_char(rest, 0, &len)) ? len : 0;
}

/* "to" between two numbers is the colon of a ratio. */
static bool is_ratio(const struct lexer *l, struct clime_str word) {
    size_t i = 0;
    if (!clime_str_is(word, "to") || l->n == 0 || l->t[l->n - 1].kind != 'n') return false;
    while (at(l, i) == ' ' || at(l, i) == '~') i++;
    return clime_rtext_is_digit(at(l, i));
}

static void letters(struct lexer *l, bool space) {
    static const struct {
        const char *word;
        char kind;
    } words[] = {{"and", ','},      {"or", ','},  {"percent", '%'}, {"percentage", '%'}, {"pct", '%'},
                 {"infinity", '8'}, {"inf", '8'}, {"oo", '8'},      {"sqrt", 'R'}};
    size_t n = 0, more = 0;
    bool foreign = false;
    while (is_letter(at(l, n)) || (more = foreign_letter(l, n))) {
        foreign |= !is_letter(at(l, n));
        n += is_letter(at(l, n)) ? 1 : more;
    }
    struct clime_str word = {l->s.ptr + l->at, n};
    l->at += n;
    for (size_t i = 0; i < CLIME_COUNT(words); i++)
        if (clime_str_is(word, words[i].word)) {
            add(l, words[i].kind, word, space);
            return;
        }
    if (is_ratio(l, word)) {
        add(l, ':', word, space);
        return;
    }
    if (foreign || is_one_of(word, FUNCTIONS, CLIME_COUNT(FUNCTIONS))) {
        add(l, foreign ? 't' : 'f', word, space);
        return;
    }
    l->runs++;
    if (clime_str_is(word, "pi")) {
        add(l, 'a', word, space);
        return;
    }
    for (size_t i = 0; i < n && !l->failed; i++) {
        struct clime_verify_token *t = add(l, 'a', clime_rtext_slice(word, i, i + 1), space && i == 0);
        if (t) t->run = l->runs;
    }
}

/* The content of the braces at l->at, without them; false when there are none. */
static bool braced(struct lexer *l, struct clime_str *out) {
    size_t i = 0, depth = 0;
    while (at(l, i) == ' ') i++;
    if (at(l, i) != '{') return false;
    size_t from = i + 1;
    for (; l->at + i < l->s.len; i++) {
        if (at(l, i) == '{') depth++;
        if (at(l, i) == '}' && --depth == 0) {
            *out = clime_rtext_strip(clime_rtext_slice(l->s, l->at + from, l->at + i));
            l->at += i + 1;
            return true;
        }
    }
    return false;
}

/* Lexes s in place of the text at l->at; `space`: preceded by a separator. */
static void read_inside(struct lexer *l, struct clime_str s, bool space) {
    struct lexer inner = *l;
    int from = l->n;
    inner.s = s;
    inner.at = 0;
    inner.depth++;
    while (inner.at < inner.s.len && !inner.failed) one_token(&inner);
    l->n = inner.n;
    l->runs = inner.runs;
    l->brackets = inner.brackets;
    l->failed = inner.failed;
    if (l->n > from && space) l->t[from].space = true;
}

/* Words only: no digit, no operator, no LaTeX, no list. */
static bool is_wording(struct clime_str s) {
    size_t len;
    for (size_t i = 0; i < s.len; i += len) {
        char c = s.ptr[i];
        bool inside = i > 0 && i + 1 < s.len, letter = clime_rtext_is_alpha(clime_rtext_char(s, i, &len));
        if (!letter && !(inside && strchr(" -'./", c)) && !strchr(".!?", c))
            return false; /* "two-point", "St. Louis" */
    }
    for (size_t i = 0; i + 3 < s.len; i++) { /* "red and blue" */
        struct clime_str rest = clime_rtext_slice(s, i, s.len);
        if (clime_str_starts(rest, " or ") || clime_str_starts(rest, " and ")) return false;
    }
    return s.len > 0;
}

static bool ends_with(struct clime_str s, const char *end) {
    size_t n = strlen(end);
    return s.len >= n && memcmp(s.ptr + s.len - n, end, n) == 0;
}

/* \text{...}: lexes the content as without the command, or makes words a text. After a value it is the unit ("(since x
 * > 0)" too), unless it joins another value. */
static void text(struct lexer *l, bool space) {
    struct clime_str t;
    if (!braced(l, &t)) return;
    if (clime_str_is(t, ",")) {
        add(l, ',', t, space);
        return;
    }
    while (t.len && (t.ptr[0] == ',' || t.ptr[0] == '~')) t = clime_rtext_strip(clime_rtext_slice(t, 1, t.len));
    if (t.len == 0) return;
    bool behind = l->n && clime_verify_ends_value(&l->t[l->n - 1]);
    bool joins = clime_str_starts(t, "and ") || clime_str_starts(t, "or ");
    joins = joins ? clime_rtext_is_digit(t.ptr[t.len - 1]) : ends_with(t, " and") || ends_with(t, " or");
    if (clime_str_is(t, "and") || clime_str_is(t, "or"))
        add(l, ',', t, space);
    else if (clime_str_starts(t, "percent") || clime_str_is(t, "pct") || clime_str_is(t, "%") || clime_str_is(t, "\\%"))
        add(l, '%', t, space);
    else if (clime_str_is(t, ":") || is_ratio(l, t))
        add(l, ':', t, space);
    else if (is_one_of(t, FUNCTIONS, CLIME_COUNT(FUNCTIONS)))
        add(l, 'f', t, space);
    else if (clime_str_is(t, "e") || clime_str_is(t, "i") || (t.len == 1 && is_letter(t.ptr[0]) && !behind))
        add(l, 'a', t, space);
    else if ((behind && !joins) || is_wording(t) || l->depth == MAX_TEXTS)
        add(l, 't', t, space);
    else
        read_inside(l, t, true);
}

static bool is_matrix(struct clime_str name) {
    static const char *const names[] = {"pmatrix", "bmatrix", "matrix", "Bmatrix", "array", "smallmatrix"};
    return is_one_of(name, names, CLIME_COUNT(names));
}

static void command(struct lexer *l, bool space) {
    size_t n = 1;
    struct clime_str arg;
    while (is_letter(at(l, n))) n++;
    if (n == 1 && l->at + 1 < l->s.len) n = 2;
    struct clime_str name = clime_rtext_slice(l->s, l->at + 1, l->at + n), full = {l->s.ptr + l->at, n};
    full.len = name.len + 1;
    l->at += 1 + name.len;
    if (name.len == 0 || strchr("!,;:> $", name.ptr[0])) return;
    if (name.ptr[0] == '\\') {
        /* "\\frac": a doubled backslash outside a matrix */
        if (is_letter(at(l, 0)) && clime_rtext_find(l->s, "matrix", 0) < 0 && clime_rtext_find(l->s, "array", 0) < 0)
            l->at--;
        else
            add(l, 'W', full, space);
        return;
    }
    for (size_t i = 0; i < CLIME_COUNT(COMMANDS); i++)
        if (clime_str_is(name, COMMANDS[i].name)) {
            char kind = COMMANDS[i].kind;
            l->brackets += kind == 'S' || kind == '(' || kind == '[';
            if (kind == 'Z' || kind == ')' || kind == ']') l->brackets -= l->brackets > 0;
            add(l, kind, COMMANDS[i].text[0] ? clime_str_of(COMMANDS[i].text) : full, space);
            return;
        }
    if (is_one_of(name, FUNCTIONS, CLIME_COUNT(FUNCTIONS)))
        add(l, 'f', name, space);
    else if (is_one_of(name, TEXTS, CLIME_COUNT(TEXTS)))
        text(l, space);
    else if (is_one_of(name, CLASSES, CLIME_COUNT(CLASSES)) && braced(l, &arg))
        read_inside(l, arg, space);
    else if (is_one_of(name, UNSEEN, CLIME_COUNT(UNSEEN))) {
        l->at += at(l, 0) == '*';
        braced(l, &arg);
    } else if (clime_str_is(name, "mathbb") && braced(l, &arg))
        add(l, clime_str_is(arg, "R") ? 'r' : 'a', arg, space);
    else if (clime_str_is(name, "begin") && braced(l, &arg)) {
        if (is_matrix(arg)) add(l, 'M', arg, space);
        if (clime_str_is(arg, "array")) braced(l, &arg); /* {cc} */
    } else if (clime_str_is(name, "end") && braced(l, &arg)) {
        if (is_matrix(arg)) add(l, 'E', arg, space);
    } else if (is_one_of(name, LOOKS, CLIME_COUNT(LOOKS))) {
        if ((clime_str_is(name, "left") || clime_str_is(name, "right")) && at(l, 0) == '.') l->at++;
        if (clime_str_is(name, "circ") || clime_str_is(name, "degree")) { /* "^\circ" and "^{\circ}" */
            bool closed = l->n && l->t[l->n - 1].kind == '{';
            if (closed && at(l, 0) == '}') {
                l->n--;
                l->at++;
            }
            if (l->n && l->t[l->n - 1].kind == '^') l->n--;
        }
    } else {
        add(l, 'a', name, space);
    }
}

static void one_token(struct lexer *l) {
    bool space = false;
    while (at(l, 0) == ' ') {
        space = true;
        l->at++;
    }
    char c = at(l, 0);
    if (c == 0 && l->at >= l->s.len) return;
    for (size_t i = 0; i < CLIME_COUNT(CHARACTERS); i++) {
        if (!clime_str_starts(clime_rtext_slice(l->s, l->at, l->s.len), CHARACTERS[i].utf8)) continue;
        l->at += strlen(CHARACTERS[i].utf8);
        read_inside(l, clime_str_of(CHARACTERS[i].latex), space);
        return;
    }
    if (clime_rtext_is_digit(c) || (c == '.' && clime_rtext_is_digit(at(l, 1)))) {
        number(l, space);
    } else if (is_letter(c) || foreign_letter(l, 0)) {
        letters(l, space);
    } else if (c == '\\') {
        command(l, space);
    } else if (c == '.') {
        l->at++; /* the end of a sentence */
    } else if (c && strchr("+-*/^_()[]{}|,;:=<>!%&'", c)) {
        struct clime_str text_of = clime_rtext_slice(l->s, l->at, l->at + 1);
        l->at++;
        l->brackets += c == '(' || c == '[';
        if (c == ')' || c == ']') l->brackets -= l->brackets > 0;
        char next = at(l, 0);
        if (c == '*' && next == '*') c = '^', l->at++;
        if (c == '<' && next == '=') c = 'L', l->at++;
        if (c == '>' && next == '=') c = 'G', l->at++;
        if (c == '!' && next == '=' && at(l, 1) != '=') c = '#', l->at++;
        if (c == '=' && next == '=') l->at++;
        add(l, c, text_of, space);
    } else {
        l->failed = true;
    }
}

int clime_verify_lex(struct clime_verify *v, struct clime_str s, bool prose, struct clime_verify_token **out) {
    struct lexer l = {.v = v, .s = s};
    if (s.len > CLIME_VERIFY_MAX_BYTES) return -1;
    l.t = clime_arena_alloc(&v->arena, CLIME_VERIFY_MAX_TOKENS * sizeof *l.t);
    if (!l.t) {
        v->spent = true;
        return -1;
    }
    while (l.at < s.len && !l.failed) one_token(&l);
    if (l.failed) return -1;
    l.n = clime_verify_join_words(v, l.t, l.n);
    l.n = clime_verify_drop_units(l.t, l.n);
    if (clime_verify_is_prose(l.t, l.n, prose)) return -1;
    while (l.n && strchr(",;", l.t[l.n - 1].kind)) l.n--; /* punctuation of the surrounding sentence */
    *out = l.t;
    return l.n;
}
