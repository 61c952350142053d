/* JSON grammar as a state machine, one bit per open container (see walk.h). Called by parsers of output, any thread.
 *
 * Invariant: a rejected byte changes no state.
 */
#include "common/json/walk.h"

#include <string.h>

enum state {
    START,
    VALUE,        /* value expected */
    VALUE_OR_END, /* after [ */
    KEY_OR_END,   /* after { */
    KEY,          /* after a comma in an object */
    COLON,
    COLON_PAST, /* value expected, after a colon */
    AFTER,      /* after a value: comma or end */
    STRING,
    ESCAPE,
    ESCAPE_HEX,
    LITERAL,
    MINUS,
    ZERO,
    INT,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_INT,
};

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool go(struct clime_json_walk *w, enum state to) {
    w->state = (uint8_t)to;
    return true;
}

static bool open_container(struct clime_json_walk *w, bool array) {
    if (w->depth == CLIME_JSON_MAX_DEPTH) return false;
    uint64_t bit = (uint64_t)1 << w->depth++;
    w->arrays = array ? w->arrays | bit : w->arrays & ~bit;
    return go(w, array ? VALUE_OR_END : KEY_OR_END);
}

static bool in_array(const struct clime_json_walk *w) {
    return w->arrays >> (w->depth - 1) & 1;
}

static bool close_container(struct clime_json_walk *w, char c) {
    if (c != (in_array(w) ? ']' : '}')) return false;
    w->depth--;
    return go(w, AFTER);
}

static bool literal(struct clime_json_walk *w, const char *tail) {
    w->tail = tail;
    return go(w, LITERAL);
}

static bool begin_value(struct clime_json_walk *w, char c) {
    w->key = false;
    switch (c) {
    case '{':
        return open_container(w, false);
    case '[':
        return open_container(w, true);
    case '"':
        return go(w, STRING);
    case 't':
        return literal(w, "rue");
    case 'f':
        return literal(w, "alse");
    case 'n':
        return literal(w, "ull");
    case '-':
        return go(w, MINUS);
    case '0':
        return go(w, ZERO);
    default:
        return is_digit(c) && go(w, INT);
    }
}

static bool begin_key(struct clime_json_walk *w, char c) {
    w->key = true;
    return c == '"' && go(w, STRING);
}

static bool after(struct clime_json_walk *w, char c) {
    if (is_space(c)) return go(w, AFTER);
    if (c == ',') return go(w, in_array(w) ? VALUE : KEY);
    return close_container(w, c);
}

static bool in_string(struct clime_json_walk *w, char c) {
    if (c == '"') return go(w, w->key ? COLON : AFTER);
    if (c == '\\') return go(w, ESCAPE);
    return (unsigned char)c >= 0x20;
}

static bool in_escape(struct clime_json_walk *w, char c) {
    if (w->state == ESCAPE) {
        w->digits = 4;
        return c == 'u' ? go(w, ESCAPE_HEX) : c && strchr("\"\\/bfnrt", c) && go(w, STRING);
    }
    if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return false;
    if (--w->digits == 0) w->state = STRING;
    return true;
}

static bool in_number(struct clime_json_walk *w, char c) {
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch ((enum state)w->state) {
    case MINUS:
        return digit && go(w, c == '0' ? ZERO : INT);
    case INT:
        if (digit) return true;
        /* fall through */
    case ZERO:
        return c == '.' ? go(w, POINT) : e ? go(w, EXPONENT) : after(w, c);
    case POINT:
        return digit && go(w, FRACTION);
    case FRACTION:
        return digit || (e ? go(w, EXPONENT) : after(w, c));
    case EXPONENT:
        return digit ? go(w, EXPONENT_INT) : (c == '+' || c == '-') && go(w, EXPONENT_SIGN);
    case EXPONENT_SIGN:
        return digit && go(w, EXPONENT_INT);
    default:
        return digit || after(w, c);
    }
}

static bool take(struct clime_json_walk *w, char c) {
    bool space = is_space(c);
    switch ((enum state)w->state) {
    case START:
        return c == '{' ? open_container(w, false) : c == '[' && open_container(w, true);
    case VALUE:
    case COLON_PAST:
        return space || begin_value(w, c);
    case VALUE_OR_END:
        return space || (c == ']' ? close_container(w, c) : begin_value(w, c));
    case KEY_OR_END:
        return space || (c == '}' ? close_container(w, c) : begin_key(w, c));
    case KEY:
        return space || begin_key(w, c);
    case COLON:
        return space || (c == ':' && go(w, COLON_PAST));
    case AFTER:
        return after(w, c);
    case STRING:
        return in_string(w, c);
    case ESCAPE:
    case ESCAPE_HEX:
        return in_escape(w, c);
    case LITERAL:
        if (c != *w->tail) return false;
        if (!*++w->tail) w->state = AFTER;
        return true;
    default:
        return in_number(w, c);
    }
}

enum clime_json_walked clime_json_walk(struct clime_json_walk *w, char c) {
    struct clime_json_walk before = *w;
    if (!take(w, c)) {
        *w = before;
        return CLIME_WALK_BAD;
    }
    return w->state == AFTER && w->depth == 0 ? CLIME_WALK_DONE : CLIME_WALK_MORE;
}

bool clime_json_walk_in_string(const struct clime_json_walk *w) {
    return w->state == STRING || w->state == ESCAPE || w->state == ESCAPE_HEX;
}

bool clime_json_walk_before_value(const struct clime_json_walk *w) {
    return w->state == COLON_PAST;
}
