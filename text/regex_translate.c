/* Rewrites Oniguruma patterns (tokenizer.json's "Regex") for PCRE2.
 *
 * Called by clime_regex_new at load. Pure function.
 * Why: the two libraries agree on the syntax that tokenizers use, but not on Unicode. The tokenizers library ships
 * Oniguruma 6.9.10 (Unicode 16); Debian 12's PCRE2 10.42 knows Unicode 14, and its \s takes U+180E and its \w neither
 * marks nor connectors. A text with a Unicode 15 letter would be split differently and get other ids. So
 * \s, \d, \w and \p{general category} are spelled out, with the characters assigned after Unicode 14 added by range
 * (UnicodeData.txt 14.0 against 16.0); with a newer PCRE2 the additions are redundant. \p{Han} is the script in
 * Oniguruma and, since PCRE2 10.40, its extensions in PCRE2 (U+3001 too).
 * An intersection [A&&[^B]], which PCRE2 lacks, becomes (?:(?![B])[A]): both match one character.
 * Choice: syntax that PCRE2 would silently read differently (other nested classes, \h, {n}+) is an error, never a
 * different tokenisation.
 */
#include "text/regex.h"

#include <stdint.h>
#include <stdlib.h>

struct assigned {
    uint32_t first, last;
    char category[3];
};

/* clang-format off */
static const struct assigned AFTER_14[] = {
    {0x897, 0x897, "Mn"}, {0xCF3, 0xCF3, "Mc"}, {0xECE, 0xECE, "Mn"}, {0x1B4E, 0x1B4F, "Po"}, {0x1B7F, 0x1B7F, "Po"},
    {0x1C89, 0x1C89, "Lu"}, {0x1C8A, 0x1C8A, "Ll"}, {0x2427, 0x2429, "So"}, {0x2FFC, 0x2FFF, "So"},
    {0x31E4, 0x31E5, "So"}, {0x31EF, 0x31EF, "So"}, {0xA7CB, 0xA7CC, "Lu"}, {0xA7CD, 0xA7CD, "Ll"},
    {0xA7DA, 0xA7DA, "Lu"}, {0xA7DB, 0xA7DB, "Ll"}, {0xA7DC, 0xA7DC, "Lu"}, {0x105C0, 0x105F3, "Lo"},
    {0x10D40, 0x10D49, "Nd"}, {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"}, {0x10D4F, 0x10D4F, "Lo"},
    {0x10D50, 0x10D65, "Lu"}, {0x10D69, 0x10D6D, "Mn"}, {0x10D6E, 0x10D6E, "Pd"}, {0x10D6F, 0x10D6F, "Lm"},
    {0x10D70, 0x10D85, "Ll"}, {0x10D8E, 0x10D8F, "Sm"}, {0x10EC2, 0x10EC4, "Lo"}, {0x10EFC, 0x10EFF, "Mn"},
    {0x1123F, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"}, {0x1138B, 0x1138B, "Lo"},
    {0x1138E, 0x1138E, "Lo"}, {0x11390, 0x113B5, "Lo"}, {0x113B7, 0x113B7, "Lo"}, {0x113B8, 0x113BA, "Mc"},
    {0x113BB, 0x113C0, "Mn"}, {0x113C2, 0x113C2, "Mc"}, {0x113C5, 0x113C5, "Mc"}, {0x113C7, 0x113CA, "Mc"},
    {0x113CC, 0x113CD, "Mc"}, {0x113CE, 0x113CE, "Mn"}, {0x113CF, 0x113CF, "Mc"}, {0x113D0, 0x113D0, "Mn"},
    {0x113D1, 0x113D1, "Lo"}, {0x113D2, 0x113D2, "Mn"}, {0x113D3, 0x113D3, "Lo"}, {0x113D4, 0x113D5, "Po"},
    {0x113D7, 0x113D8, "Po"}, {0x113E1, 0x113E2, "Mn"}, {0x116D0, 0x116E3, "Nd"}, {0x11B00, 0x11B09, "Po"},
    {0x11BC0, 0x11BE0, "Lo"}, {0x11BE1, 0x11BE1, "Po"}, {0x11BF0, 0x11BF9, "Nd"}, {0x11F00, 0x11F01, "Mn"},
    {0x11F02, 0x11F02, "Lo"}, {0x11F03, 0x11F03, "Mc"}, {0x11F04, 0x11F10, "Lo"}, {0x11F12, 0x11F33, "Lo"},
    {0x11F34, 0x11F35, "Mc"}, {0x11F36, 0x11F3A, "Mn"}, {0x11F3E, 0x11F3F, "Mc"}, {0x11F40, 0x11F40, "Mn"},
    {0x11F41, 0x11F41, "Mc"}, {0x11F42, 0x11F42, "Mn"}, {0x11F43, 0x11F4F, "Po"}, {0x11F50, 0x11F59, "Nd"},
    {0x11F5A, 0x11F5A, "Mn"}, {0x1342F, 0x1342F, "Lo"}, {0x13439, 0x1343F, "Cf"}, {0x13440, 0x13440, "Mn"},
    {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"}, {0x13460, 0x143FA, "Lo"}, {0x16100, 0x1611D, "Lo"},
    {0x1611E, 0x16129, "Mn"}, {0x1612A, 0x1612C, "Mc"}, {0x1612D, 0x1612F, "Mn"}, {0x16130, 0x16139, "Nd"},
    {0x16D40, 0x16D42, "Lm"}, {0x16D43, 0x16D6A, "Lo"}, {0x16D6B, 0x16D6C, "Lm"}, {0x16D6D, 0x16D6F, "Po"},
    {0x16D70, 0x16D79, "Nd"}, {0x18CFF, 0x18CFF, "Lo"}, {0x1B132, 0x1B132, "Lo"}, {0x1B155, 0x1B155, "Lo"},
    {0x1CC00, 0x1CCEF, "So"}, {0x1CCF0, 0x1CCF9, "Nd"}, {0x1CD00, 0x1CEB3, "So"}, {0x1D2C0, 0x1D2D3, "No"},
    {0x1DF25, 0x1DF2A, "Ll"}, {0x1E030, 0x1E06D, "Lm"}, {0x1E08F, 0x1E08F, "Mn"}, {0x1E4D0, 0x1E4EA, "Lo"},
    {0x1E4EB, 0x1E4EB, "Lm"}, {0x1E4EC, 0x1E4EF, "Mn"}, {0x1E4F0, 0x1E4F9, "Nd"}, {0x1E5D0, 0x1E5ED, "Lo"},
    {0x1E5EE, 0x1E5EF, "Mn"}, {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"}, {0x1E5FF, 0x1E5FF, "Po"},
    {0x1F6DC, 0x1F6DC, "So"}, {0x1F774, 0x1F776, "So"}, {0x1F77B, 0x1F77F, "So"}, {0x1F7D9, 0x1F7D9, "So"},
    {0x1F8B2, 0x1F8BB, "So"}, {0x1F8C0, 0x1F8C1, "So"}, {0x1FA75, 0x1FA77, "So"}, {0x1FA87, 0x1FA89, "So"},
    {0x1FA8F, 0x1FA8F, "So"}, {0x1FAAD, 0x1FAAF, "So"}, {0x1FABB, 0x1FABF, "So"}, {0x1FAC6, 0x1FAC6, "So"},
    {0x1FACE, 0x1FACF, "So"}, {0x1FADA, 0x1FADC, "So"}, {0x1FADF, 0x1FADF, "So"}, {0x1FAE8, 0x1FAE9, "So"},
    {0x1FAF7, 0x1FAF8, "So"}, {0x1FBCB, 0x1FBEF, "So"}, {0x2B739, 0x2B739, "Lo"}, {0x2EBF0, 0x2EE5D, "Lo"},
    {0x31350, 0x323AF, "Lo"},
};
/* clang-format on */

static const char HAN[] = "\\p{sc:Han}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"; /* Scripts.txt 16.0 */

struct translator {
    struct clime_str in;
    size_t at;
    struct clime_buf *out;
    bool in_class, negated; /* negated: the current class began with [^ */
    size_t class_at;        /* its start in out */
    struct clime_error *e;
};

/* Ranges of AFTER_14 in a category ("L" takes "Lu", "Ll", ...), adjacent ones merged. */
static void add_assigned(struct clime_buf *out, const char *category, size_t len) {
    size_t i = 0;
    while (i < CLIME_COUNT(AFTER_14)) {
        if (memcmp(AFTER_14[i].category, category, len) != 0) {
            i++;
            continue;
        }
        uint32_t first = AFTER_14[i].first, last = AFTER_14[i].last;
        for (i++; i < CLIME_COUNT(AFTER_14) && AFTER_14[i].first == last + 1 &&
                  memcmp(AFTER_14[i].category, category, len) == 0;
             i++)
            last = AFTER_14[i].last;
        clime_buf_printf(out, "\\x{%X}-\\x{%X}", first, last);
    }
}

static void add_category(struct clime_buf *out, const char *category, size_t len) {
    clime_buf_printf(out, "\\p{%.*s}", (int)len, category);
    add_assigned(out, category, len);
}

/* Writes the members of \s, \d or \w for use inside a class. */
static void add_shorthand(struct clime_buf *out, char kind) {
    if (kind == 's') { /* the property White_Space */
        clime_buf_adds(out, "\\t-\\r\\x{85}\\p{Z}");
    } else if (kind == 'd') {
        add_category(out, "Nd", 2);
    } else { /* Alphabetic, marks, digits, connectors: 24B6.. and 1F130.. are the alphabetic symbols */
        add_category(out, "L", 1);
        add_category(out, "M", 1);
        add_category(out, "Nd", 2);
        add_category(out, "Nl", 2);
        add_category(out, "Pc", 2);
        clime_buf_adds(out, "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}");
    }
}

static enum clime_err refuse(struct translator *t, const char *what) {
    return clime_fail(t->e, CLIME_ERR_INPUT, "pattern: %s at byte %zu is not supported", what, t->at);
}

/* Opens a class for the members that follow; inside a class, nothing; a negated set there is not expressible. */
static enum clime_err open_set(struct translator *t, bool negated) {
    if (t->in_class) return negated ? refuse(t, "a negated set inside a class") : CLIME_OK;
    clime_buf_adds(t->out, negated ? "[^" : "[");
    return CLIME_OK;
}

/* \p{X}, \P{X}, \p{^X}; at is on the 'p'. Scripts and other properties are copied. */
static enum clime_err property(struct translator *t) {
    bool negated = t->in.ptr[t->at] == 'P';
    size_t open = t->at + 1, close = open;
    if (open >= t->in.len || t->in.ptr[open] != '{') return refuse(t, "a property without braces");
    while (close < t->in.len && t->in.ptr[close] != '}') close++;
    if (close == t->in.len) return refuse(t, "an unclosed property");
    const char *name = t->in.ptr + open + 1;
    size_t len = close - open - 1;
    if (len && *name == '^') {
        negated = !negated;
        name++;
        len--;
    }
    bool han = len == 3 && memcmp(name, "Han", 3) == 0;
    bool category = (len == 1 || (len == 2 && name[1] >= 'a' && name[1] <= 'z')) && memchr("LMNPSZ", *name, 6);
    if (!han && !category) {
        clime_buf_printf(t->out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)len, name);
    } else {
        enum clime_err rc = open_set(t, negated);
        if (rc) return rc;
        if (han)
            clime_buf_adds(t->out, HAN);
        else
            add_category(t->out, name, len);
        if (!t->in_class) clime_buf_addc(t->out, ']');
    }
    t->at = close + 1;
    return CLIME_OK;
}

/* at is on the backslash. */
static enum clime_err escape(struct translator *t) {
    if (++t->at == t->in.len) return refuse(t, "a backslash at the end");
    char c = t->in.ptr[t->at];
    enum clime_err rc = CLIME_OK;
    switch (c) {
    case 'p':
    case 'P':
        return property(t);
    case 's':
    case 'd':
    case 'w':
    case 'D':
    case 'W':
    case 'S':
        if (c == 'S' && t->in_class) {
            clime_buf_adds(t->out, "\\S\\x{180E}"); /* the only character where PCRE2's \s differs */
        } else {
            rc = open_set(t, c < 'a');
            if (rc) return rc;
            add_shorthand(t->out, (char)(c | 0x20));
            if (!t->in_class) clime_buf_addc(t->out, ']');
        }
        t->at++;
        return CLIME_OK;
    case 'h':
    case 'H':
    case 'R':
    case 'X':
    case 'K':
    case 'G':
    case 'y':
    case 'Y':
        return refuse(t, "this escape");
    case 'u': /* \uHHHH */
        if (t->in.len - t->at < 5) return refuse(t, "an incomplete \\u");
        clime_buf_printf(t->out, "\\x{%.4s}", t->in.ptr + t->at + 1);
        t->at += 5;
        return CLIME_OK;
    default:
        clime_buf_addc(t->out, '\\');
        clime_buf_addc(t->out, c);
        t->at++;
        return CLIME_OK;
    }
}

/* at is on the '[' that opens a class. */
static void open_class(struct translator *t) {
    t->in_class = true;
    t->negated = false;
    t->class_at = t->out->len;
    clime_buf_addc(t->out, '[');
    if (++t->at < t->in.len && t->in.ptr[t->at] == '^') {
        t->negated = true;
        clime_buf_addc(t->out, '^');
        t->at++;
    }
    if (t->at < t->in.len && t->in.ptr[t->at] == ']') { /* a first ']' is literal */
        clime_buf_adds(t->out, "\\]");
        t->at++;
    }
}

static enum clime_err intersection(struct translator *t);

/* Translates one element at `at`: an escape, the opening of a class, or one character. */
static enum clime_err step(struct translator *t) {
    char c = t->in.ptr[t->at];
    char next = t->at + 1 < t->in.len ? t->in.ptr[t->at + 1] : '\0';
    if (c == '\\') return escape(t);
    if (!t->in_class && c == '[') {
        open_class(t);
        return CLIME_OK;
    }
    if (t->in_class && c == '[') return refuse(t, "a class inside a class");
    if (t->in_class && c == '&' && next == '&') return intersection(t);
    if (!t->in_class && c == '}' && next == '+') return refuse(t, "'+' after an interval");
    if (t->in_class && c == ']') t->in_class = false;
    clime_buf_addc(t->out, c);
    t->at++;
    return CLIME_OK;
}

/* [A&&[B]] and [A&&[^B]], which end the class; at is on the first '&'. Moves the written "[A" behind the look-ahead at
 * B. */
static enum clime_err intersection(struct translator *t) {
    size_t begin = t->class_at;
    bool empty = t->out->len == begin + 1;
    if (empty || t->negated || t->out->full || t->in.len - t->at < 4 || t->in.ptr[t->at + 2] != '[')
        return refuse(t, "this class intersection");
    char *left = xstrndup(t->out->data + begin, t->out->len - begin);
    t->out->len = begin;
    clime_buf_adds(t->out, t->in.ptr[t->at + 3] == '^' ? "(?:(?!" : "(?:(?=");
    size_t inner = t->out->len;
    t->at += 2;
    open_class(t);
    if (t->negated) t->out->len--; /* the look-ahead is negated instead */
    enum clime_err rc = t->out->len > inner + 1 ? refuse(t, "this class intersection") : CLIME_OK; /* "[]" */
    while (!rc && t->in_class && t->at < t->in.len)
        rc = t->in.ptr[t->at] == '&' ? refuse(t, "this class intersection") : step(t);
    if (!rc && (t->at == t->in.len || t->in.ptr[t->at] != ']')) rc = refuse(t, "this class intersection");
    if (!rc) {
        clime_buf_printf(t->out, ")%s])", left);
        t->at++;
    }
    free(left);
    return rc;
}

enum clime_err clime_regex_translate(struct clime_str pattern, struct clime_buf *out, struct clime_error *e) {
    struct translator t = {.in = pattern, .out = out, .e = e};
    enum clime_err rc = CLIME_OK;
    while (!rc && t.at < pattern.len) rc = step(&t);
    return rc;
}
