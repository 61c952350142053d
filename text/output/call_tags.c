/* Reader of tag-style calls: a name, then keys and values, all unquoted. Called by call_parse.c.
 *
 *   Qwen3-Coder  <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>; closing tags may be missing
 *   GLM-4.5      NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ... </tool_call>
 *
 * The tool's schema gives a value's types (tools.h). A value that can only be a string is streamed; any other is
 * buffered to its end, since its first bytes do not determine the type.
 */
#include "text/output/call_readers.h"

enum phase { NAME_OPEN, NAME, NEXT, KEY, VALUE_OPEN, VALUE_BEGIN, VALUE, BEHIND };

static enum clime_call_step wait_or_bad(struct clime_parse *p, struct clime_str text, bool last) {
    if (last) p->seen = text.len;
    return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
}

/* Skips white space and a marker: DONE = consumed. */
static enum clime_call_step expect(struct clime_parse *p, struct clime_str text, bool last, const char *marker) {
    p->seen = clime_skip_space(text, p->seen);
    if (clime_marker_at(text, p->seen, marker)) {
        p->seen += strlen(marker);
        return CLIME_CALL_DONE;
    }
    return clime_marker_begins(text, p->seen, marker) ? wait_or_bad(p, text, last) : CLIME_CALL_BAD;
}

static struct clime_str trimmed(struct clime_str text, size_t begin, size_t end) {
    while (begin < end && clime_is_space(text.ptr[begin])) begin++;
    while (end > begin && clime_is_space(text.ptr[end - 1])) end--;
    return (struct clime_str){text.ptr + begin, end - begin};
}

/* NAME ends with its tag, or without one at the end of line or the next tag. */
static enum clime_call_step read_name(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    const char *close = r->form->name_close;
    if (!close && r->from == p->seen) r->from = p->seen = clime_skip_space(text, p->seen);
    for (; p->seen < text.len; p->seen++) {
        char c = text.ptr[p->seen];
        if (close ? c == *close : c == '\n' || c == '<') {
            struct clime_str name = trimmed(text, r->from, p->seen);
            if (!clime_call_announce(p, text, name)) return CLIME_CALL_BAD;
            p->seen += close != NULL;
            r->phase = NEXT;
            return CLIME_CALL_DONE;
        }
        if (p->seen - r->from > CLIME_MAX_CALL_NAME || c == '\n') return CLIME_CALL_BAD;
    }
    return wait_or_bad(p, text, last);
}

static void finish_args(struct clime_parse *p) {
    clime_buf_adds(&clime_call_of(p)->args, p->reader.n_params ? "}" : "{}");
}

/* Reads a key or the call's end: its own closing tag, or if missing the outer one. */
static enum clime_call_step read_next(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    const struct clime_call_form *f = r->form;
    p->seen = clime_skip_space(text, p->seen);
    bool closed = clime_marker_at(text, p->seen, f->close);
    if (closed || (f->end && clime_marker_at(text, p->seen, f->end))) {
        if (closed) p->seen += strlen(f->close);
        r->json_end = p->seen;
        finish_args(p);
        r->phase = BEHIND;
        return CLIME_CALL_DONE;
    }
    if (clime_marker_at(text, p->seen, f->key_open)) {
        p->seen += strlen(f->key_open);
        r->from = p->seen;
        r->phase = KEY;
        return CLIME_CALL_DONE;
    }
    bool may = clime_marker_begins(text, p->seen, f->close) || clime_marker_begins(text, p->seen, f->key_open) ||
               (f->end && clime_marker_begins(text, p->seen, f->end));
    return may ? wait_or_bad(p, text, last) : CLIME_CALL_BAD;
}

static unsigned value_types(const struct clime_parse *p, struct clime_str key) {
    const struct clime_call *call = &p->calls.at[p->reader.call];
    unsigned types = clime_tools_types(p->how.tools, clime_buf_str(&call->name), key);
    if (types) return types;
    return p->reader.form->untyped_json ? CLIME_TYPE_OTHER : CLIME_TYPE_STRING;
}

static enum clime_call_step read_key(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    const char *close = r->form->key_close;
    for (; p->seen < text.len && !clime_marker_at(text, p->seen, close); p->seen++) {
        if (clime_marker_begins(text, p->seen, close)) return wait_or_bad(p, text, last);
        if (text.ptr[p->seen] == '\n' || p->seen - r->from > CLIME_MAX_CALL_NAME) return CLIME_CALL_BAD;
    }
    if (p->seen == text.len) return wait_or_bad(p, text, last);
    struct clime_str key = trimmed(text, r->from, p->seen);
    if (key.len == 0) return CLIME_CALL_BAD;
    struct clime_buf *args = &clime_call_of(p)->args;
    clime_buf_adds(args, r->n_params++ ? ", \"" : "{\"");
    clime_json_escape(args, key);
    clime_buf_adds(args, "\": ");
    r->types = value_types(p, key);
    p->seen += strlen(close);
    r->phase = VALUE_OPEN;
    return CLIME_CALL_DONE;
}

static enum clime_call_step open_value(struct clime_parse *p, struct clime_str text, bool last) {
    if (p->reader.form->value_open) {
        enum clime_call_step step = expect(p, text, last, p->reader.form->value_open);
        if (step != CLIME_CALL_DONE) return step;
    }
    p->reader.phase = VALUE_BEGIN;
    return CLIME_CALL_DONE;
}

static enum clime_call_step begin_value(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    if (r->form->trim_newline && p->seen == text.len) return wait_or_bad(p, text, last);
    if (r->form->trim_newline && text.ptr[p->seen] == '\n') p->seen++;
    r->from = p->seen;
    if (r->types == CLIME_TYPE_STRING) clime_buf_addc(&clime_call_of(p)->args, '"');
    r->phase = VALUE;
    return CLIME_CALL_DONE;
}

/* Finds a value's end, or a possible one. Without its closing tag the value ends at the form's next tag, as in vLLM and
 * SGLang: running over it would give a wrong call. The tag that closes the whole call does not count: arguments may
 * quote it. *closed: the value's own tag was consumed. */
static bool find_value_end(struct clime_parse *p, struct clime_str text, bool *closed) {
    const struct clime_call_form *f = p->reader.form;
    const char *const ends[] = {f->value_close, f->key_open, f->end ? f->close : f->key_open};
    for (; p->seen < text.len; p->seen++)
        for (size_t i = 0; i < CLIME_COUNT(ends); i++) {
            *closed = i == 0;
            if (clime_marker_at(text, p->seen, ends[i])) return true;
            if (clime_marker_begins(text, p->seen, ends[i])) return false;
        }
    return false;
}

/* `from` advances past streamed bytes of a string. */
static enum clime_call_step read_value(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    const struct clime_call_form *f = r->form;
    struct clime_buf *args = &clime_call_of(p)->args;
    bool closed, ended = find_value_end(p, text, &closed);
    size_t end = p->seen;
    if (f->trim_newline && end > r->from && text.ptr[end - 1] == '\n') end--; /* layout, or undecided */
    struct clime_str value = {text.ptr + r->from, end - r->from};
    if (r->types == CLIME_TYPE_STRING) {
        clime_json_escape(args, value);
        r->from = end;
        if (ended) clime_buf_addc(args, '"');
    } else if (ended) {
        clime_tool_value(value, r->types, args);
    }
    if (!ended) return wait_or_bad(p, text, last);
    if (closed) p->seen += strlen(f->value_close);
    r->phase = NEXT;
    return CLIME_CALL_DONE;
}

enum clime_call_step clime_call_read_tags(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    for (enum clime_call_step step = CLIME_CALL_DONE; step == CLIME_CALL_DONE;) {
        switch ((enum phase)r->phase) {
        case NAME_OPEN:
            if (r->form->name_open) step = expect(p, text, last, r->form->name_open);
            if (step == CLIME_CALL_DONE) r->phase = NAME, r->from = p->seen;
            break;
        case NAME:
            step = read_name(p, text, last);
            break;
        case NEXT:
            step = read_next(p, text, last);
            break;
        case KEY:
            step = read_key(p, text, last);
            break;
        case VALUE_OPEN:
            step = open_value(p, text, last);
            break;
        case VALUE_BEGIN:
            step = begin_value(p, text, last);
            break;
        case VALUE:
            step = read_value(p, text, last);
            break;
        case BEHIND:
            return r->form->end ? clime_call_close(p, text, last, r->form->end) : CLIME_CALL_DONE;
        }
        if (step != CLIME_CALL_DONE) return step;
    }
    return CLIME_CALL_BAD;
}
