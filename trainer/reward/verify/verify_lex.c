/* Answers to tokens; see verify.h. Called by verify_read.c, any thread; tokens lie in the question's arena.
 *
 * LaTeX that changes the look only (\left, \displaystyle, \,) vanishes here, and so do units behind a number: what the
 * reader sees is mathematics. The one choice that is not obvious: a word of plain letters is a product of symbols, as
 * in LaTeX, unless it is the name of something; two long unknown words make the text prose, which is no answer.
 */
#include <stdlib.h>

#include "common/err.h"
#include "trainer/reward/text.h"
#include "trainer/reward/verify/verify.h"

struct lexer {
    struct clime_verify *v;
    struct clime_str s;
    size_t at;
    struct clime_verify_token *t;
    int n, runs, words; /* words: unknown ones of 4 letters and more */
    int brackets;       /* depth of ( [ \{: inside, a comma always separates */
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
/* Commands that vanish; with an argument it stays ("\mathbf{x}" is x). */
static const char *const LOOKS[] = {
    "left",     "right",     "big",     "Big",    "bigg",         "Bigg",      "bigl",        "bigr",
    "Bigl",     "Bigr",      "biggl",   "biggr",  "displaystyle", "textstyle", "scriptstyle", "limits",
    "nolimits", "quad",      "qquad",   "boxed",  "fbox",         "mathbf",    "mathit",      "boldsymbol",
    "bm",       "mathcal",   "mathscr", "mathsf", "degree",       "circ",      "mleft",       "mright",
    "ldots",    "dots",      "cdots",   "hspace", "Large",        "large",     "bf",          "it",
    "rm",       "therefore", "phantom", "hline",  "underline",    "mathop",    "mathord",     "ensuremath"};
static const char *const TEXTS[] = {"text",       "mathrm", "textbf", "textit",       "mbox", "textrm",
                                    "textnormal", "hbox",   "textsf", "operatorname", "emph"};
static const struct {
    const char *utf8, *latex;
} CHARACTERS[] = {{"×", "*"},           {"÷", "/"},        {"·", "*"},      {"−", "-"},     {"–", "-"},
                  {"π", "\\pi "},       {"√", "\\sqrt "},  {"≤", "\\le "},  {"≥", "\\ge "}, {"≠", "\\ne "},
                  {"∞", "\\infty "},    {"∪", "\\cup "},   {"∩", "\\cap "}, {"∈", "\\in "}, {"±", "\\pm "},
                  {"≈", "\\approx "},   {"°", ""},         {"²", "^2"},     {"³", "^3"},    {"ℝ", "\\mathbb{R}"},
                  {"∅", "\\emptyset "}, {"θ", "\\theta "}, {"$", ""},       {"\"", ""},     {"~", " "},
                  {"\n", " "},          {"\t", " "},       {"，", ","},     {"！", "!"},    {"₂", "_2"}};

static bool is_one_of(struct clime_str s, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (clime_str_is(s, list[i])) return true;
    return false;
}

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

/* What separates thousands at offset i: its length in bytes, 0 when nothing does. Three digits must follow. */
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

static void letters(struct lexer *l, bool space) {
    static const struct {
        const char *word;
        char kind;
    } words[] = {{"and", ','},      {"or", ','},  {"percent", '%'}, {"percentage", '%'}, {"pct", '%'},
                 {"infinity", '8'}, {"inf", '8'}, {"oo", '8'},      {"sqrt", 'R'}};
    size_t n = 0;
    while (is_letter(at(l, n))) n++;
    struct clime_str word = {l->s.ptr + l->at, n};
    l->at += n;
    for (size_t i = 0; i < CLIME_COUNT(words); i++)
        if (clime_str_is(word, words[i].word)) {
            add(l, words[i].kind, word, space);
            return;
        }
    if (is_one_of(word, FUNCTIONS, CLIME_COUNT(FUNCTIONS))) {
        add(l, 'f', word, space);
        return;
    }
    l->runs++;
    if (n >= 4 && ++l->words > 1) l->failed = true;
    if (clime_str_is(word, "pi")) {
        add(l, 'a', word, space);
        return;
    }
    for (size_t i = 0; i < n && !l->failed; i++) {
        struct clime_verify_token *t = add(l, 'a', clime_rtext_slice(word, i, i + 1), space && i == 0);
        if (t) t->run = l->runs;
    }
}

/* The content of the braces at l->at, braces taken off; false when there are none. */
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

/* \text{...}: a word of the notation, one letter, or a text. */
static void text(struct lexer *l, bool space) {
    struct clime_str t;
    if (!braced(l, &t)) return;
    while (t.len && (t.ptr[0] == ',' || t.ptr[0] == '~')) t = clime_rtext_strip(clime_rtext_slice(t, 1, t.len));
    if (t.len == 0) return;
    if (clime_str_is(t, "and") || clime_str_is(t, "or"))
        add(l, ',', t, space);
    else if (clime_str_starts(t, "percent") || clime_str_is(t, "pct"))
        add(l, '%', t, space);
    else if (is_one_of(t, FUNCTIONS, CLIME_COUNT(FUNCTIONS)))
        add(l, 'f', t, space);
    else if (clime_str_is(t, "e") || clime_str_is(t, "i"))
        add(l, 'a', t, space);
    else
        add(l, 't', t, space);
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
        /* "\\frac" with a doubled backslash outside of a matrix */
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
    else if (clime_str_is(name, "mathbb") && braced(l, &arg))
        add(l, clime_str_is(arg, "R") ? 'r' : 'a', arg, space);
    else if (clime_str_is(name, "begin") && braced(l, &arg)) {
        if (is_matrix(arg)) add(l, 'M', arg, space);
        if (clime_str_is(arg, "array")) braced(l, &arg); /* {cc} */
    } else if (clime_str_is(name, "end") && braced(l, &arg)) {
        if (is_matrix(arg)) add(l, 'E', arg, space);
    } else if (is_one_of(name, LOOKS, CLIME_COUNT(LOOKS))) {
        if ((clime_str_is(name, "left") || clime_str_is(name, "right")) && at(l, 0) == '.') l->at++;
        if (clime_str_is(name, "hspace")) braced(l, &arg);
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
        struct lexer inner = *l; /* the LaTeX of the character, with this text put aside */
        inner.s = clime_str_of(CHARACTERS[i].latex);
        inner.at = 0;
        while (inner.at < inner.s.len && !inner.failed) one_token(&inner);
        l->n = inner.n;
        l->failed = inner.failed;
        if (l->n && space) l->t[l->n - 1].space = true;
        return;
    }
    if (clime_rtext_is_digit(c) || (c == '.' && clime_rtext_is_digit(at(l, 1)))) {
        number(l, space);
    } else if (is_letter(c)) {
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

/* ---- units ---- */

static bool is_unit(struct clime_str s) {
    static const char *const units[] = {
        "m",      "cm",      "mm",    "km",     "dm",      "ft",    "feet",   "foot",   "inch",    "inches",  "mile",
        "miles",  "yard",    "yards", "g",      "kg",      "lb",    "lbs",    "pound",  "pounds",  "s",       "sec",
        "second", "seconds", "min",   "minute", "minutes", "h",     "hr",     "hour",   "hours",   "day",     "days",
        "week",   "weeks",   "month", "months", "year",    "years", "mph",    "kmh",    "degree",  "degrees", "deg",
        "unit",   "units",   "sq",    "square", "cubic",   "cent",  "cents",  "dollar", "dollars", "liter",   "liters",
        "litre",  "gallon",  "acre",  "meter",  "meters",  "metre", "ohm",    "th",     "st",      "am",      "pm",
        "mL",     "ml",      "L",     "l",      "kmph",    "rpm",   "points", "point",  "digits",  "PM",      "AM",
        "mi",     "in",      "cc",    "rs",     "Rs",      "mol",   "N",      "J",      "K",       "Hz",      "V"};
    return is_one_of(s, units, CLIME_COUNT(units));
}

/* Whether a unit may stand behind this token: something with a value ends here. */
static bool ends_value(const struct clime_verify_token *t) {
    return t->kind == 'n' || t->kind == '}' || t->kind == ')' || t->kind == '%' || t->kind == 'a' || t->kind == '!' ||
           t->kind == ']' || t->kind == 'Z';
}

/* Whether what follows a unit may follow a complete answer. */
static bool ends_answer(const struct lexer *l, int i) {
    return i >= l->n || strchr(",;)]Z=~<>LG", l->t[i].kind);
}

/* The token behind an exponent that starts at i, or i: "cm^2", "cm^{2}". */
static int behind_exponent(const struct lexer *l, int i) {
    if (i + 1 < l->n && l->t[i].kind == '^' && l->t[i + 1].kind == 'n') return i + 2;
    if (i + 3 < l->n && l->t[i].kind == '^' && l->t[i + 1].kind == '{' && l->t[i + 2].kind == 'n' &&
        l->t[i + 3].kind == '}')
        return i + 4;
    return i;
}

/* The token behind a unit that starts at i, or i: a text, a listed word, or any word of three letters behind a space;
 * a single letter only behind a space, for it may be a symbol. */
static int behind_unit(const struct lexer *l, int i) {
    const struct clime_verify_token *t = &l->t[i];
    int end = i + 1;
    if (t->kind == 't') return behind_exponent(l, end);
    if (!t->run) return i;
    while (end < l->n && l->t[end].run == t->run) end++;
    struct clime_str word = {t->text.ptr, (size_t)(end - i)};
    bool unit = (word.len >= 3 && t->space) || (is_unit(word) && (word.len > 1 || t->space));
    return unit ? behind_exponent(l, end) : i;
}

static void drop_units(struct lexer *l) {
    for (int i = 1; i < l->n; i++) {
        if (!ends_value(&l->t[i - 1])) continue;
        int end = i, next;
        while (end < l->n && (next = behind_unit(l, end)) > end) {
            end = next;
            if (end + 1 < l->n && l->t[end].kind == '/' && behind_unit(l, end + 1) > end + 1) end++; /* "m/s" */
        }
        if (end == i || !ends_answer(l, end)) continue;
        memmove(&l->t[i], &l->t[end], (size_t)(l->n - end) * sizeof *l->t);
        l->n -= end - i;
    }
}

int clime_verify_lex(struct clime_verify *v, struct clime_str s, struct clime_verify_token **out) {
    struct lexer l = {.v = v, .s = s};
    if (s.len > CLIME_VERIFY_MAX_BYTES) return -1;
    l.t = clime_arena_alloc(&v->arena, CLIME_VERIFY_MAX_TOKENS * sizeof *l.t);
    if (!l.t) {
        v->spent = true;
        return -1;
    }
    while (l.at < s.len && !l.failed) one_token(&l);
    if (l.failed) return -1;
    drop_units(&l);
    while (l.n && strchr(",;", l.t[l.n - 1].kind)) l.n--; /* of the sentence around it */
    *out = l.t;
    return l.n;
}
