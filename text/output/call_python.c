/* Reader of Python-style calls: get(city="Paris", n=[1, None]). Called by call_parse.c.
 *
 * A call is parsed once its closing parenthesis arrives: quotes and brackets are tracked byte by byte, then the
 * arguments, which must be keyword literals, are converted to JSON at once. A call with positional arguments, which
 * have no name, is invalid.
 */
#include <ctype.h>

#include "text/output/call_readers.h"

#define MAX_DEPTH 32

/* ---- literals to JSON ---- */

struct literal {
    const char *at, *end;
    struct clime_buf *out;
    int depth;
};

static void skip(struct literal *l) {
    while (l->at < l->end && clime_is_space(*l->at)) l->at++;
}

static bool take(struct literal *l, char c) {
    skip(l);
    if (l->at == l->end || *l->at != c) return false;
    l->at++;
    return true;
}

/* The escapes that JSON has, \', and line continuation. */
static bool escape(struct literal *l) {
    static const char from[] = "nrtbf\\\"'/", *const to[] = {"\\n",  "\\r",  "\\t", "\\b",  "\\f",
                                                             "\\\\", "\\\"", "'",   "\\\\/"};
    const char *hit = l->at < l->end && *l->at ? strchr(from, *l->at) : NULL;
    if (hit) {
        clime_buf_adds(l->out, to[hit - from]);
        l->at++;
        return true;
    }
    if (l->at < l->end && *l->at == '\n') return l->at++, true;
    if (l->end - l->at < 5 || *l->at != 'u') return false;
    for (int i = 1; i < 5; i++)
        if (!isxdigit((unsigned char)l->at[i])) return false;
    clime_buf_addc(l->out, '\\');
    clime_buf_add(l->out, l->at, 5);
    l->at += 5;
    return true;
}

static bool string(struct literal *l) {
    char quote = *l->at++;
    clime_buf_addc(l->out, '"');
    while (l->at < l->end && *l->at != quote) {
        if (*l->at == '\\') {
            l->at++;
            if (!escape(l)) return false;
        } else {
            clime_json_escape(l->out, (struct clime_str){l->at++, 1});
        }
    }
    clime_buf_addc(l->out, '"');
    return l->at++ < l->end;
}

static bool word(struct literal *l) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *from = l->at;
    while (l->at < l->end && (isalnum((unsigned char)*l->at) || strchr("_.+-", *l->at))) l->at++;
    struct clime_str s = {from, (size_t)(l->at - from)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (clime_str_is(s, words[i][0])) return clime_buf_adds(l->out, words[i][1]), true;
    if (s.len == 0 || !clime_json_check(s.ptr, s.len, NULL)) return false; /* a number */
    clime_buf_add(l->out, s.ptr, s.len);
    return true;
}

static bool value(struct literal *l);

/* Items up to the closing bracket, with an optional trailing comma. keyed: "key": value. */
static bool items(struct literal *l, char close, bool keyed) {
    bool first = true;
    clime_buf_addc(l->out, keyed ? '{' : '[');
    for (; !take(l, close); first = false) {
        if (!first && !take(l, ',')) return false;
        if (!first && take(l, close)) break;
        if (!first) clime_buf_adds(l->out, ", ");
        skip(l);
        if (keyed && (l->at == l->end || (*l->at != '"' && *l->at != '\'') || !string(l) || !take(l, ':')))
            return false;
        if (keyed) clime_buf_adds(l->out, ": ");
        if (!value(l)) return false;
    }
    clime_buf_addc(l->out, keyed ? '}' : ']');
    return true;
}

static bool value(struct literal *l) {
    skip(l);
    if (l->at == l->end || l->depth == MAX_DEPTH) return false;
    if (*l->at == '"' || *l->at == '\'') return string(l);
    if (!strchr("[({", *l->at)) return word(l);
    char open = *l->at++;
    l->depth++;
    bool fine = items(l, open == '[' ? ']' : open == '(' ? ')' : '}', open == '{');
    l->depth--;
    return fine;
}

/* key=value, ... to an object. */
static bool arguments(struct clime_str text, struct clime_buf *out) {
    struct literal l = {text.ptr, text.ptr + text.len, out, 0};
    clime_buf_addc(out, '{');
    for (bool first = true;; first = false) {
        skip(&l);
        if (l.at == l.end) break;
        if (!first && (!take(&l, ',') || (skip(&l), l.at == l.end))) break;
        const char *key = l.at;
        while (l.at < l.end && (isalnum((unsigned char)*l.at) || *l.at == '_')) l.at++;
        size_t n = (size_t)(l.at - key);
        if (n == 0 || !take(&l, '=')) return false;
        clime_buf_printf(out, "%s\"%.*s\": ", first ? "" : ", ", (int)n, key);
        if (!value(&l)) return false;
    }
    clime_buf_addc(out, '}');
    return l.at == l.end;
}

/* ---- the call ---- */

enum phase { NAME, ARGUMENTS };

static enum clime_call_step read_name(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    for (; p->seen < text.len; p->seen++) {
        char c = text.ptr[p->seen];
        if (c == '(' && p->seen > r->from) {
            r->name_end = p->seen++;
            r->args_begin = p->seen;
            r->phase = ARGUMENTS;
            return CLIME_CALL_DONE;
        }
        bool part = isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-';
        if (!part || p->seen - r->from > CLIME_MAX_CALL_NAME) return CLIME_CALL_BAD;
    }
    return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
}

/* True if c is the parenthesis that closes the call. */
static bool closes(struct clime_call_reader *r, char c) {
    if (r->quote) {
        if (r->escaped)
            r->escaped = false;
        else if (c == '\\')
            r->escaped = true;
        else if (c == r->quote)
            r->quote = '\0';
    } else if (c == '"' || c == '\'') {
        r->quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
        r->depth++;
    } else if (c == ')' || c == ']' || c == '}') {
        return r->depth-- == 0;
    }
    return false;
}

enum clime_call_step clime_call_read_python(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    if (r->phase == NAME) {
        enum clime_call_step step = read_name(p, text, last);
        if (step != CLIME_CALL_DONE) return step;
    }
    while (p->seen < text.len && !closes(r, text.ptr[p->seen])) p->seen++;
    if (p->seen == text.len) return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
    struct clime_str name = {text.ptr + r->from, r->name_end - r->from};
    struct clime_str args = {text.ptr + r->args_begin, p->seen - r->args_begin};
    struct clime_buf json;
    clime_buf_init(&json, 4 * args.len + 64);
    bool fine = arguments(args, &json) && clime_call_announce(p, text, name); /* announce only valid calls */
    if (fine) clime_buf_add(&clime_call_of(p)->args, json.data, json.len);
    clime_buf_free(&json);
    if (!fine) return CLIME_CALL_BAD;
    p->seen++;
    return CLIME_CALL_DONE;
}
