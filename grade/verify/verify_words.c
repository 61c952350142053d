/* Words among an answer's tokens: units, texts and prose (see verify.h). Called by verify_lex.c, any thread.
 *
 * Removes words after a value, its unit, and joins other words into one text, so "no solution" is not the product of
 * "no" with a unit. A word of letters is a run of symbols (struct clime_verify_token's run), a text from \text{} one
 * token. The non-obvious choice: only listed units are removed after a symbol, since "ABC" after \triangle is none.
 */
#include <stdlib.h>

#include "common/buf.h"
#include "common/err.h"
#include "grade/verify/verify.h"

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
    for (size_t i = 0; i < CLIME_COUNT(units); i++)
        if (clime_str_is(s, units[i])) return true;
    return false;
}

/* ---- words ---- */

static bool is_word(const struct clime_verify_token *t) {
    return t->kind == 't' || t->run;
}

/* The word that begins at i; *end is the token after it. */
static struct clime_str word_at(const struct clime_verify_token *t, int n, int i, int *end) {
    *end = i + 1;
    if (t[i].run <= 0) return t[i].text;
    while (*end < n && t[*end].run == t[i].run) ++*end;
    return (struct clime_str){t[i].text.ptr, (size_t)(*end - i)};
}

bool clime_verify_ends_value(const struct clime_verify_token *t) {
    return strchr("n})%a!]Z", t->kind) != NULL;
}

static bool is_upper(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < 'A' || s.ptr[i] > 'Z') return false;
    return true;
}

/* True when a word before others is a symbol or a product of symbols: "x cm", "AB units". */
static bool is_symbol(const struct clime_verify_token *t, struct clime_str word, bool all_units) {
    if (t->kind == 't') return false;
    if (word.len == 1) return all_units || (word.ptr[0] | 32) != 'a'; /* "a circle" */
    if (clime_str_is(word, "no")) return false;
    return (word.len <= 3 && is_upper(word)) || (word.len == 2 && all_units);
}

int clime_verify_join_words(struct clime_verify *v, struct clime_verify_token *t, int n) {
    int to = 0, end;
    for (int i = 0; i < n; i = end) {
        int words = 0, last = i, next;
        bool all_units = true, some_long = false;
        end = i + 1;
        if (is_word(&t[i]) && !(to && clime_verify_ends_value(&t[to - 1]))) {
            struct clime_buf joined;
            clime_buf_init(&joined, CLIME_VERIFY_MAX_BYTES);
            for (; last < n && is_word(&t[last]) && (words == 0 || t[last].space || t[last].kind == 't'); last = next) {
                struct clime_str word = word_at(t, n, last, &next);
                if (words) all_units &= is_unit(word);
                some_long |= word.len >= 3;
                if (words++) clime_buf_addc(&joined, ' ');
                clime_buf_add(&joined, word.ptr, word.len);
            }
            struct clime_str first = word_at(t, n, i, &next);
            bool join = words > 1 && some_long && !is_symbol(&t[i], first, all_units);
            char *name = join ? clime_arena_strdup(&v->arena, clime_buf_str(&joined)) : NULL;
            if (name) {
                t[to++] = (struct clime_verify_token){
                    .kind = 't', .space = t[i].space, .run = -1, .text = {name, joined.len}};
                end = last;
            }
            clime_buf_free(&joined);
            if (name) continue;
        }
        t[to++] = t[i];
    }
    return to;
}

/* ---- units ---- */

/* True when the group that ends at i is not the argument of a command. */
static bool is_plain_group(const struct clime_verify_token *t, int i) {
    int depth = 0;
    for (; i >= 0; i--) {
        depth += (t[i].kind == '}') - (t[i].kind == '{');
        if (depth == 0) return i == 0 || !strchr("^_FRBO}]", t[i - 1].kind);
    }
    return false;
}

/* True when the token after a unit may follow a complete answer. */
static bool ends_answer(const struct clime_verify_token *t, int n, int i) {
    return i >= n || strchr(",;)]Z=~<>LG", t[i].kind) || (t[i].kind == '}' && is_plain_group(t, i));
}

/* The token after an exponent at i, or i: "cm^2", "cm^{2}". */
static int behind_exponent(const struct clime_verify_token *t, int n, int i) {
    if (i + 1 < n && t[i].kind == '^' && t[i + 1].kind == 'n') return i + 2;
    if (i + 3 < n && t[i].kind == '^' && t[i + 1].kind == '{' && t[i + 2].kind == 'n' && t[i + 3].kind == '}')
        return i + 4;
    return i;
}

/* The token after a unit at i, or i. A unit is a text, a listed word, or after a number any word of three letters after
 * a space; a single letter, which may be a symbol, only after a space. */
static int behind_unit(const struct clime_verify_token *t, int n, int i, bool symbol) {
    int end;
    if (!is_word(&t[i]) || (i && t[i].run && t[i - 1].run == t[i].run)) return i;
    struct clime_str word = word_at(t, n, i, &end);
    bool unit =
        t[i].kind == 't' || (word.len >= 3 && t[i].space && !symbol) || (is_unit(word) && (word.len > 1 || t[i].space));
    return unit ? behind_exponent(t, n, end) : i;
}

int clime_verify_drop_units(struct clime_verify_token *t, int n) {
    for (int i = 1; i < n; i++) {
        bool symbol = t[i - 1].kind == 'a';
        if (!clime_verify_ends_value(&t[i - 1])) continue;
        int end = i, next;
        while (end < n && (next = behind_unit(t, n, end, symbol)) > end) {
            end = next;
            if (end + 1 < n && t[end].kind == '/' && behind_unit(t, n, end + 1, symbol) > end + 1) end++; /* "m/s" */
        }
        if (end == i || !ends_answer(t, n, end)) continue;
        memmove(&t[i], &t[end], (size_t)(n - end) * sizeof *t);
        n -= end - i;
    }
    return n;
}

/* ---- prose ---- */

/* Counts words of four or more letters. */
static int long_words(struct clime_str s) {
    int n = 0;
    size_t len = 0;
    for (size_t i = 0; i <= s.len; i++) {
        if (i < s.len && s.ptr[i] != ' ') {
            len++;
            continue;
        }
        n += len >= 4;
        len = 0;
    }
    return n;
}

bool clime_verify_is_prose(const struct clime_verify_token *t, int n, bool words_count) {
    bool only_words = true;
    int words = 0, end;
    for (int i = 0; i < n; i++) only_words &= t[i].kind == 't' || t[i].run || strchr(",;{}()-'!", t[i].kind);
    for (int i = 0; i < n; i = end) {
        struct clime_str word = word_at(t, n, i, &end);
        if (t[i].run) words += t[i].run < 0 && !only_words ? 2 : long_words(word); /* "the answer is 5" */
    }
    return words > 1 && !(words_count && only_words);
}
