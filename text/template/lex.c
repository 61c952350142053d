/* Splits a chat template into tokens. Called once per compilation, on any thread.
 *
 * White space control is applied here, with trim_blocks and lstrip_blocks as in transformers: the newline after a block
 * or comment is dropped, and so are blanks before one at the start of its line; `-` takes all white space on
 * its side, `+` keeps what the two options would take. `{{ }}` is touched by `-` only.
 *
 * Invariant: data tokens are slices of one normalised copy of the source (newlines are \n, one at the end dropped), so
 * a token's line is found by counting newlines up to it.
 */
#include <errno.h>
#include <stdlib.h>

#include "text/template/ast.h"
#include "text/unicode.h"

struct lexer {
    struct clime_tr *tr;
    const char *start, *at, *end;
    const char *counted; /* up to here tr->line is right */
    struct clime_ttoken *tokens;
    size_t n, size;
    bool line_starting; /* the last token's match ended with a newline */
};

static void go_to(struct lexer *x, const char *at) {
    for (; x->counted < at; x->counted++) x->tr->line += *x->counted == '\n';
    x->at = at;
}

static struct clime_ttoken *push(struct lexer *x, int type, const char *from, const char *to) {
    if (x->n == x->size) {
        size_t size = x->size ? x->size * 2 : 256;
        struct clime_ttoken *tokens = clime_tr_alloc(x->tr, size * sizeof *tokens);
        if (x->n) memcpy(tokens, x->tokens, x->n * sizeof *tokens);
        x->tokens = tokens;
        x->size = size;
    }
    struct clime_ttoken *t = &x->tokens[x->n++];
    *t = (struct clime_ttoken){.type = type, .line = x->tr->line, .text = {from, (size_t)(to - from)}};
    return t;
}

static bool at_text(const struct lexer *x, const char *at, const char *z) {
    size_t n = strlen(z);
    return (size_t)(x->end - at) >= n && memcmp(at, z, n) == 0;
}

static const char *skip_space(const struct lexer *x, const char *at) {
    while (at < x->end) {
        const char *next = at;
        if (!clime_unicode_is_space(clime_unicode_next(&next, x->end))) break;
        at = next;
    }
    return at;
}

/* The end of text without the white space at its end. */
static const char *strip_right(const char *from, const char *to) {
    while (to > from) {
        const char *last = to - 1;
        while (last > from && ((unsigned char)*last & 0xC0) == 0x80) last--;
        const char *at = last;
        if (!clime_unicode_is_space(clime_unicode_next(&at, to))) break;
        to = last;
    }
    return to;
}

/* Emits the text before a tag. sign: the character after the tag's opening, if it is '-' or '+'. */
static void push_data(struct lexer *x, const char *from, const char *to, char sign, bool variable) {
    if (sign == '-') {
        to = strip_right(from, to);
    } else if (sign != '+' && !variable) {
        const char *line = to;
        while (line > from && line[-1] != '\n') line--;
        if ((line > from || x->line_starting) && strip_right(line, to) == line) to = line;
    }
    if (to > from) push(x, CLIME_TOK_DATA, from, to);
}

/* The end of a tag at `at` (closing is "%}" or "#}"): past what belongs to it, or NULL when it is not here. */
static const char *closing_end(const struct lexer *x, const char *at, const char *closing) {
    if (*at == '-' && at_text(x, at + 1, closing)) return skip_space(x, at + 3);
    if (*at == '+' && at_text(x, at + 1, closing)) return at + 3;
    if (!at_text(x, at, closing)) return NULL;
    return at + 2 < x->end && at[2] == '\n' ? at + 3 : at + 2;
}

static void lex_comment(struct lexer *x) {
    for (const char *at = x->at; at < x->end; at++) {
        const char *to = closing_end(x, at, "#}");
        if (!to) continue;
        x->line_starting = to[-1] == '\n';
        go_to(x, to);
        return;
    }
    clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Missing end of comment tag");
}

/* At the text after "{%" and its sign: past a `raw %}`, or NULL. */
static const char *raw_begin(const struct lexer *x, const char *at) {
    at = skip_space(x, at);
    if (!at_text(x, at, "raw")) return NULL;
    at = skip_space(x, at + 3);
    if (at_text(x, at, "-%}")) return skip_space(x, at + 3);
    return at_text(x, at, "%}") ? at + 2 : NULL;
}

static void lex_raw(struct lexer *x) {
    x->line_starting = x->at[-1] == '\n';
    for (const char *at = x->at; at < x->end; at++) {
        if (!at_text(x, at, "{%")) continue;
        char sign = at + 2 < x->end && (at[2] == '-' || at[2] == '+') ? at[2] : 0;
        const char *word = skip_space(x, at + 2 + (sign != 0));
        if (!at_text(x, word, "endraw")) continue;
        word = skip_space(x, word + 6);
        const char *to = word < x->end ? closing_end(x, word, "%}") : NULL;
        if (!to) continue;
        push_data(x, x->at, at, sign, false);
        x->line_starting = to[-1] == '\n';
        go_to(x, to);
        return;
    }
    clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Missing end of raw directive");
}

/* ---- inside tags ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_name_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static int digit_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

/* Digits of a base with single underscores between; NULL when there is none. */
static const char *skip_digits(const struct lexer *x, const char *at, int base) {
    if (at >= x->end || digit_value(*at) >= base) return NULL;
    while (at < x->end && (digit_value(*at) < base || (*at == '_' && at + 1 < x->end && digit_value(at[1]) < base)))
        at++;
    return at;
}

static void lex_number(struct lexer *x) {
    const char *from = x->at, *to, *more;
    int base = 10;
    bool is_float = false;
    if (*from == '0' && from + 1 < x->end) {
        char c = (char)(from[1] | 0x20);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    }
    const char *digits = base == 10 ? from : from + 2;
    if (base != 10 && *digits == '_') digits++;
    to = base == 10 ? NULL : skip_digits(x, digits, base);
    if (!to) {
        base = 10;
        digits = from;
        to = skip_digits(x, from, 10);
        bool after_dot = from > x->start && from[-1] == '.';
        if (!after_dot && to < x->end && *to == '.' && (more = skip_digits(x, to + 1, 10))) {
            is_float = true;
            to = more;
        }
        if (!after_dot && to < x->end && (*to | 0x20) == 'e') {
            more = to + 1;
            if (more < x->end && (*more == '+' || *more == '-')) more++;
            if ((more = skip_digits(x, more, 10))) {
                is_float = true;
                to = more;
            }
        }
    }
    char text[64];
    size_t n = 0;
    for (const char *c = digits; c < to; c++) {
        if (n + 1 >= sizeof text) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "a number is too long");
        if (*c != '_') text[n++] = *c;
    }
    text[n] = '\0';
    struct clime_ttoken *t = push(x, CLIME_TOK_NUMBER, from, to);
    if (is_float) {
        t->value = clime_tv_float(strtod(text, NULL));
    } else {
        errno = 0;
        t->value = clime_tv_int(strtoll(text, NULL, base));
        if (errno) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "the integer %s is past 64 bits", text);
    }
    go_to(x, to);
}

/* One escape of Python's unicode-escape at `at` (after the backslash); appends it and returns what follows. */
static const char *lex_escape(struct lexer *x, const char *at, const char *end, struct clime_tout *o) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = memchr(from, *at, sizeof from - 1);
    if (known) {
        clime_tout_addc(x->tr, o, to[known - from]);
        return at + 1;
    }
    if (*at == '\n') return at + 1;
    int n_digits = *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;
    int32_t cp = 0;
    if (n_digits) {
        at++;
        for (int i = 0; i < n_digits; i++, at++) {
            if (at >= end || digit_value(*at) > 15 || cp > 0x10FFFF)
                clime_tr_fail(x->tr, CLIME_ERR_INPUT, "truncated or illegal \\x or \\u escape in a string");
            cp = cp * 16 + digit_value(*at);
        }
    } else if (*at >= '0' && *at <= '7') {
        for (int i = 0; i < 3 && at < end && *at >= '0' && *at <= '7'; i++) cp = cp * 8 + (*at++ - '0');
    } else if (*at == 'N') {
        clime_tr_fail(x->tr, CLIME_ERR_INPUT, "\\N{...} escapes are not supported");
    } else {
        clime_tout_addc(x->tr, o, '\\');
        return at; /* an unknown escape is kept */
    }
    char bytes[4];
    int n = clime_unicode_put(cp, bytes);
    if (n == 0) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "a string escape is no Unicode character");
    clime_tout_add(x->tr, o, bytes, (size_t)n);
    return at;
}

static void lex_string(struct lexer *x) {
    char quote = *x->at;
    const char *from = x->at + 1, *to = from;
    bool escaped = false;
    for (; to < x->end && *to != quote; to++) {
        if (*to != '\\') continue;
        escaped = true;
        if (++to == x->end) break;
    }
    if (to >= x->end) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "unexpected char %c: a string does not end", quote);
    struct clime_ttoken *t = push(x, CLIME_TOK_STRING, from, to);
    if (escaped) {
        struct clime_tout o = {0};
        for (const char *at = from; at < to;) {
            if (*at == '\\')
                at = lex_escape(x, at + 1, to, &o);
            else
                clime_tout_addc(x->tr, &o, *at++);
        }
        t->text = (struct clime_str){o.data ? o.data : "", o.len};
    }
    go_to(x, to + 1);
}

static void lex_operator(struct lexer *x) {
    static const struct {
        const char *text;
        int type;
    } two[] = {{"==", CLIME_TOK_EQ}, {"!=", CLIME_TOK_NE},  {">=", CLIME_TOK_GE},
               {"<=", CLIME_TOK_LE}, {"**", CLIME_TOK_POW}, {"//", CLIME_TOK_FLOORDIV}};
    for (size_t i = 0; i < CLIME_COUNT(two); i++) {
        if (!at_text(x, x->at, two[i].text)) continue;
        push(x, two[i].type, x->at, x->at + 2);
        go_to(x, x->at + 2);
        return;
    }
    if (!*x->at || !strchr("+-/*%~[](){}><=.:|,;", *x->at))
        clime_tr_fail(x->tr, CLIME_ERR_INPUT, "unexpected character in a tag: '%c'", *x->at);
    push(x, *x->at, x->at, x->at + 1);
    go_to(x, x->at + 1);
}

/* Keeps the stack of open brackets; fails when c closes the wrong one. */
static void balance(struct lexer *x, struct clime_tout *open, char c) {
    if (c == '(' || c == '[' || c == '{') {
        clime_tout_addc(x->tr, open, c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
        if (open->len == 0) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "unexpected '%c'", c);
        char want = open->data[--open->len];
        if (want != c) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "unexpected '%c', expected '%c'", c, want);
    }
}

/* The inside of {{ }} or {% %}, through its end. Brackets must be balanced before an end counts as one. */
static void lex_tag(struct lexer *x, bool variable) {
    struct clime_tout open = {0};
    for (;;) {
        go_to(x, skip_space(x, x->at));
        if (x->at >= x->end) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "unexpected end of template in a tag");
        const char *to = NULL;
        if (open.len == 0 && variable) {
            if (at_text(x, x->at, "-}}")) to = skip_space(x, x->at + 3);
            if (at_text(x, x->at, "}}")) to = x->at + 2;
        } else if (open.len == 0) {
            to = closing_end(x, x->at, "%}");
        }
        if (to) {
            push(x, variable ? CLIME_TOK_VAR_END : CLIME_TOK_BLOCK_END, x->at, to);
            x->line_starting = to[-1] == '\n';
            go_to(x, to);
            return;
        }
        char c = *x->at;
        if (is_digit(c)) {
            lex_number(x);
        } else if (is_name_char(c)) {
            const char *end = x->at;
            while (end < x->end && is_name_char(*end)) end++;
            push(x, CLIME_TOK_NAME, x->at, end);
            go_to(x, end);
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            balance(x, &open, c);
            lex_operator(x);
        }
    }
}

static struct clime_str normalise(struct clime_tr *tr, struct clime_str source) {
    char *text = clime_tr_alloc(tr, source.len + 1);
    size_t n = 0;
    for (size_t i = 0; i < source.len; i++) {
        char c = source.ptr[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < source.len && source.ptr[i + 1] == '\n') i++;
        }
        text[n++] = c;
    }
    if (n && text[n - 1] == '\n') n--;
    text[n] = '\0';
    return (struct clime_str){text, n};
}

struct clime_ttoken *clime_template_lex(struct clime_tr *tr, struct clime_str source) {
    struct clime_str text = normalise(tr, source);
    struct lexer x = {.tr = tr, .start = text.ptr, .at = text.ptr, .end = text.ptr + text.len, .counted = text.ptr};
    x.line_starting = true;
    tr->line = 1;
    while (x.at < x.end) {
        const char *tag = x.at;
        while (tag < x.end && !(*tag == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#'))) tag++;
        if (tag == x.end) {
            push(&x, CLIME_TOK_DATA, x.at, x.end);
            break;
        }
        const char *inside = tag + 2;
        char sign = *inside == '-' || *inside == '+' ? *inside++ : 0;
        push_data(&x, x.at, tag, sign, tag[1] == '{');
        go_to(&x, inside);
        const char *raw = tag[1] == '%' ? raw_begin(&x, inside) : NULL;
        if (raw) {
            go_to(&x, raw);
            lex_raw(&x);
        } else if (tag[1] == '#') {
            lex_comment(&x);
        } else {
            push(&x, tag[1] == '{' ? CLIME_TOK_VAR_BEGIN : CLIME_TOK_BLOCK_BEGIN, tag, inside);
            lex_tag(&x, tag[1] == '{');
        }
    }
    go_to(&x, x.end);
    push(&x, CLIME_TOK_EOF, x.end, x.end);
    return x.tokens;
}
