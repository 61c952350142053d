/* EBNF to expressions: GBNF, as in llama.cpp, XGrammar, SGLang and vLLM. Called by grammar.c, on the compiling thread.
 *
 *   root  ::= "yes" | "no" reason?      # a comment
 *   reason ::= ", because " [^\n]{1,80}
 *
 * A rule extends to the next "name ::=", regardless of lines. `root` is the whole text.
 */
#include <stdlib.h>

#include "common/hash.h"
#include "common/utf8.h"
#include "text/grammar/readers.h"

#define MAX_NESTING 200
#define MAX_RULES 65536

struct reader {
    struct clime_exprs *x;
    struct clime_str text;
    size_t at;
    int depth;
    struct named {
        struct clime_str name;
        int rule;
        bool defined;
    } * rules;
    int *slots; /* open addressing over rules, index + 1 */
    int n_rules, n_slots;
    struct clime_error *e;
    enum clime_err err;
};

static int bad(struct reader *r, const char *what) {
    if (!r->err) r->err = clime_fail(r->e, CLIME_ERR_INPUT, "grammar: %s at byte %zu", what, r->at);
    return CLIME_EXPR_NEVER_NODE;
}

static void skip(struct reader *r) {
    for (; r->at < r->text.len; r->at++) {
        if (r->text.ptr[r->at] == '#')
            while (r->at < r->text.len && r->text.ptr[r->at] != '\n') r->at++;
        if (r->at == r->text.len || !strchr(" \t\r\n", r->text.ptr[r->at]) || !r->text.ptr[r->at]) return;
    }
}

static bool more(const struct reader *r) {
    return !r->err && r->at < r->text.len;
}

static bool sees(const struct reader *r, const char *z) {
    size_t n = strlen(z);
    return r->text.len - r->at >= n && memcmp(r->text.ptr + r->at, z, n) == 0;
}

/* ---- rules by name ---- */

static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static struct clime_str read_name(struct reader *r) {
    size_t from = r->at;
    while (r->at < r->text.len && in_name(r->text.ptr[r->at])) r->at++;
    return (struct clime_str){r->text.ptr + from, r->at - from};
}

static int *slot_of(struct reader *r, struct clime_str name) {
    int at = (int)(clime_hash_bytes(name.ptr, name.len, 0) & (uint64_t)(r->n_slots - 1));
    while (r->slots[at] && !clime_str_eq(r->rules[r->slots[at] - 1].name, name)) at = (at + 1) & (r->n_slots - 1);
    return &r->slots[at];
}

static struct named *rule_of(struct reader *r, struct clime_str name) {
    int *slot = slot_of(r, name);
    if (*slot) return &r->rules[*slot - 1];
    if (r->n_rules == MAX_RULES) {
        bad(r, "too many rules");
        return &r->rules[0];
    }
    r->rules[r->n_rules] = (struct named){name, clime_expr_rule_new(r->x, name), false};
    *slot = ++r->n_rules;
    return &r->rules[r->n_rules - 1];
}

/* ---- bodies ---- */

static bool hex(struct reader *r, int digits, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        int v = r->at < r->text.len ? clime_hex_digit(r->text.ptr[r->at]) : -1;
        if (v < 0) return false;
        *c = *c * 16 + (uint32_t)v;
    }
    return *c <= CLIME_MAX_CHAR && (*c < 0xD800 || *c > 0xDFFF);
}

static int read_string(struct reader *r, char quote) {
    struct clime_buf out;
    static const char from[] = "ntrbf\\\"'/]", to[] = "\n\t\r\b\f\\\"'/]";
    clime_buf_init(&out, r->text.len + 1);
    for (r->at++; more(r) && r->text.ptr[r->at] != quote;) {
        char z = r->text.ptr[r->at++], utf8[4];
        uint32_t c;
        if (z != '\\') {
            clime_buf_addc(&out, z);
            continue;
        }
        z = r->at < r->text.len ? r->text.ptr[r->at++] : '\0';
        int digits = z == 'x' ? 2 : z == 'u' ? 4 : z == 'U' ? 8 : 0;
        const char *known = z ? strchr(from, z) : NULL;
        if (digits) {
            if (!hex(r, digits, &c)) bad(r, "a bad hexadecimal escape");
            if (!r->err) clime_buf_add(&out, utf8, (size_t)clime_utf8_encode(c, utf8));
        } else if (known) {
            clime_buf_addc(&out, to[known - from]);
        } else {
            bad(r, "an unknown escape");
        }
    }
    if (r->at >= r->text.len) bad(r, "a string without its end");
    r->at++;
    int node = clime_expr_literal(r->x, clime_buf_str(&out));
    clime_buf_free(&out);
    return node;
}

static int read_alternatives(struct reader *r);

static int read_atom(struct reader *r) {
    struct clime_chars c = {0};
    char z = r->text.ptr[r->at];
    int node = CLIME_EXPR_NEVER_NODE;
    if (z == '"' || z == '\'') return read_string(r, z);
    if (z == '(') {
        r->at++;
        skip(r);
        if (sees(r, "=")) return bad(r, "a lookahead (=...) is not supported,");
        if (++r->depth > MAX_NESTING) return bad(r, "parentheses nest too deep");
        node = read_alternatives(r);
        r->depth--;
        if (!more(r) || r->text.ptr[r->at] != ')') return bad(r, "a parenthesis without its end");
        r->at++;
        return node;
    }
    if (z == '[' || z == '.') {
        r->at++;
        if (z == '.')
            clime_chars_add(&c, 0, CLIME_MAX_CHAR);
        else if (!r->err && (r->err = clime_class_read(r->text, &r->at, &c, r->e)))
            clime_error_prefix(r->e, "grammar");
        node = clime_expr_chars(r->x, &c, CLIME_SPELL_UTF8);
        clime_chars_free(&c);
        return node;
    }
    if (!in_name(z)) return bad(r, "an unexpected character");
    struct clime_str name = read_name(r);
    return clime_expr_rule(r->x, rule_of(r, name)->rule);
}

static bool read_number(struct reader *r, int *out) {
    size_t from = r->at;
    for (*out = 0; r->at < r->text.len && r->text.ptr[r->at] >= '0' && r->text.ptr[r->at] <= '9'; r->at++)
        if (*out <= CLIME_EXPR_MAX_REPEAT) *out = *out * 10 + (r->text.ptr[r->at] - '0');
    return r->at > from;
}

static int read_item(struct reader *r) {
    int node = read_atom(r);
    for (skip(r); more(r) && strchr("*+?{", r->text.ptr[r->at]); skip(r)) {
        char z = r->text.ptr[r->at++];
        int min = z == '+', max = z == '?' ? 1 : CLIME_EXPR_INF;
        if (z == '{') {
            skip(r);
            bool low = read_number(r, &min);
            skip(r);
            max = min;
            if (sees(r, ",")) {
                r->at++;
                skip(r);
                if (!read_number(r, &max)) max = CLIME_EXPR_INF;
                skip(r);
            } else if (!low) {
                return bad(r, "a repetition without a number");
            }
            if (!sees(r, "}")) return bad(r, "a repetition without its end");
            r->at++;
        }
        if (min > CLIME_EXPR_MAX_REPEAT || max > CLIME_EXPR_MAX_REPEAT) return bad(r, "a count over 1048576");
        if (max != CLIME_EXPR_INF && max < min) return bad(r, "a repetition whose most is below its least");
        node = clime_expr_repeat(r->x, node, min, max);
    }
    return node;
}

/* True at the name of the next rule. */
static bool at_definition(struct reader *r) {
    size_t was = r->at;
    struct clime_str name = read_name(r);
    skip(r);
    bool is = name.len > 0 && sees(r, "::=");
    r->at = was;
    return is;
}

static int read_alternatives(struct reader *r) {
    struct clime_expr_list all = {0}, items = {0};
    for (skip(r); more(r) && r->text.ptr[r->at] != ')' && !at_definition(r); skip(r)) {
        if (r->text.ptr[r->at] == '|') {
            r->at++;
            clime_expr_list_add(&all, clime_expr_list_seq(r->x, &items));
        } else {
            clime_expr_list_add(&items, read_item(r));
        }
    }
    clime_expr_list_add(&all, clime_expr_list_seq(r->x, &items));
    return clime_expr_list_alt(r->x, &all);
}

static void read_rule(struct reader *r) {
    struct clime_str name = read_name(r);
    skip(r);
    if (name.len == 0 || !sees(r, "::=")) {
        bad(r, "EBNF is read, not Lark: a rule \"name ::= ...\" is expected");
        return;
    }
    r->at += 3;
    struct named *n = rule_of(r, name);
    if (n->defined) bad(r, "a rule is defined twice");
    n->defined = true;
    int rule = n->rule, body = read_alternatives(r);
    if (!r->err) clime_expr_rule_is(r->x, rule, body);
}

enum clime_err clime_ebnf_read(struct clime_exprs *x, struct clime_str text, int *out, struct clime_error *e) {
    struct reader r = {.x = x, .text = text, .n_slots = 2 * MAX_RULES, .e = e};
    r.rules = xmalloc(MAX_RULES * sizeof *r.rules);
    r.slots = xcalloc((size_t)r.n_slots, sizeof *r.slots);
    int root = rule_of(&r, clime_str_of("root"))->rule;
    for (skip(&r); more(&r); skip(&r)) read_rule(&r);
    for (int i = 0; i < r.n_rules && !r.err; i++)
        if (!r.rules[i].defined)
            r.err = clime_fail(e, CLIME_ERR_INPUT, "grammar: the rule " CLIME_STR_FMT " is not defined",
                               CLIME_STR_ARG(r.rules[i].name));
    *out = clime_expr_rule(x, root);
    free(r.rules);
    free(r.slots);
    return r.err;
}
