/* Readers of calls with JSON arguments: an object with name and arguments, or a name followed by arguments. Called by
 * call_parse.c.
 *
 * Invariant: each byte is walked once; arguments are copied to the call as far as the walk accepted them, so announced
 * arguments are a prefix of a JSON object.
 */
#include "text/output/call_readers.h"

/* Copies new argument bytes, up to `end`. */
static void copy_args(struct clime_parse *p, struct clime_str text, size_t end) {
    struct clime_call_reader *r = &p->reader;
    if (r->call < 0 || r->args_begin == 0) return;
    struct clime_buf *args = &clime_call_of(p)->args;
    size_t from = r->args_begin + args->len, to = r->args_end && r->args_end < end ? r->args_end : end;
    if (to > from) clime_buf_add(args, text.ptr + from, to - from);
}

/* ---- {"name": N, "arguments": {...}} ---- */

enum object_phase { BEFORE, INSIDE, BEHIND };

static struct clime_str slice(struct clime_str text, size_t begin, size_t end) {
    return (struct clime_str){text.ptr + begin, end - begin};
}

static struct clime_str key_of(const struct clime_call_reader *r, struct clime_str text) {
    return slice(text, r->key_begin, r->key_end);
}

static bool key_is_args(struct clime_str key) {
    return clime_str_is(key, "arguments") || clime_str_is(key, "parameters");
}

/* A call may have no arguments, null or an empty text; a bare object may not: it could be any object in the text. */
static bool announce_without(struct clime_parse *p, struct clime_str text) {
    struct clime_call_reader *r = &p->reader;
    if (r->args_begin || r->form->bare || r->name_end == 0) return false;
    if (r->none_begin && !clime_marker_at(text, r->none_begin, "null") && !clime_marker_at(text, r->none_begin, "\"\""))
        return false;
    if (!clime_call_announce(p, text, slice(text, r->name_begin, r->name_end))) return false;
    clime_buf_adds(&clime_call_of(p)->args, "{}");
    return true;
}

/* Announces once name and arguments' beginning are known. */
static bool try_announce(struct clime_parse *p, struct clime_str text) {
    struct clime_call_reader *r = &p->reader;
    if (r->call >= 0 || r->args_begin == 0 || r->name_end == 0) return true;
    return clime_call_announce(p, text, slice(text, r->name_begin, r->name_end));
}

/* A member's value begins at p->seen. */
static bool begin_member(struct clime_parse *p, struct clime_str text) {
    struct clime_call_reader *r = &p->reader;
    struct clime_str key = key_of(r, text);
    char c = text.ptr[p->seen];
    if (clime_str_is(key, "name")) {
        if (c != '"' || r->name_begin) return false;
        r->name_begin = p->seen + 1;
    } else if (key_is_args(key)) {
        if (r->args_begin || r->none_begin) return false;
        if (c == 'n' || c == '"') return r->none_begin = p->seen, true;
        r->args_begin = p->seen;
        return c == '{' && try_announce(p, text);
    } else if (r->form->bare && !clime_str_is(key, "type") && !clime_str_is(key, "id")) {
        return false; /* an ordinary object in the text */
    }
    return true;
}

/* One byte inside the object. */
static bool step_object(struct clime_parse *p, struct clime_str text, enum clime_json_walked *walked) {
    struct clime_call_reader *r = &p->reader;
    struct clime_json_walk before = r->walk;
    char c = text.ptr[p->seen];
    bool was_string = clime_json_walk_in_string(&before);
    *walked = clime_json_walk(&r->walk, c);
    if (*walked == CLIME_WALK_BAD) return false;
    bool is_string = clime_json_walk_in_string(&r->walk);
    if (before.depth == 1 && !was_string && is_string && r->walk.key) r->key_begin = p->seen + 1;
    if (before.depth == 1 && was_string && !is_string && before.key) r->key_end = p->seen;
    if (before.depth == 1 && clime_json_walk_before_value(&before) && !clime_is_space(c) && !begin_member(p, text))
        return false;
    if (before.depth == 1 && was_string && !is_string && !before.key && r->name_begin && !r->name_end) {
        r->name_end = p->seen;
        if (!try_announce(p, text)) return false;
    }
    if (before.depth == 2 && r->walk.depth == 1 && r->args_begin && !r->args_end && key_is_args(key_of(r, text)))
        r->args_end = p->seen + 1;
    return true;
}

enum clime_call_step clime_call_read_object(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    if (r->phase == BEFORE) {
        p->seen = clime_skip_space(text, p->seen);
        if (p->seen == text.len) return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
        if (text.ptr[p->seen] != '{') return CLIME_CALL_BAD;
        r->phase = INSIDE;
    }
    while (r->phase == INSIDE && p->seen < text.len) {
        enum clime_json_walked walked;
        if (!step_object(p, text, &walked)) return CLIME_CALL_BAD;
        bool done = walked == CLIME_WALK_DONE,
             whole = done && ((r->call >= 0 && r->args_end) || announce_without(p, text));
        p->seen++;
        if (!done) continue;
        if (!whole) return CLIME_CALL_BAD;
        r->phase = BEHIND;
        r->json_end = p->seen;
    }
    copy_args(p, text, p->seen);
    if (r->phase == INSIDE) return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
    return r->form->end ? clime_call_close(p, text, last, r->form->end) : CLIME_CALL_DONE;
}

/* ---- NAME separator {...} ---- */

enum header_phase { NAME, GAP, ARGUMENTS, CLOSE };

/* functions.NAME:INDEX is the id of a call of NAME. */
static struct clime_str function_name(struct clime_str id) {
    struct clime_str name = id;
    size_t end = name.len;
    while (end > 0 && name.ptr[end - 1] >= '0' && name.ptr[end - 1] <= '9') end--;
    if (end > 0 && end < name.len && name.ptr[end - 1] == ':') name.len = end - 1;
    if (clime_str_starts(name, "functions.")) name.ptr += 10, name.len -= 10;
    return name;
}

/* Cuts [CALL_ID] and an id between name and separator (Mistral). */
static struct clime_str cut_id(struct clime_str name, struct clime_str *id) {
    static const char marker[] = "[CALL_ID]";
    for (size_t i = 0; i + sizeof marker - 1 <= name.len; i++) {
        if (memcmp(name.ptr + i, marker, sizeof marker - 1) != 0) continue;
        *id = slice(name, i + sizeof marker - 1, name.len);
        name.len = i;
    }
    return name;
}

static bool announce_header(struct clime_parse *p, struct clime_str text) {
    struct clime_call_reader *r = &p->reader;
    struct clime_str name = slice(text, r->name_begin, r->name_end), id = {NULL, 0};
    while (name.len && clime_is_space(name.ptr[0])) name.ptr++, name.len--;
    while (name.len && clime_is_space(name.ptr[name.len - 1])) name.len--;
    if (r->form->function_id) {
        id = name;
        name = function_name(id);
    } else {
        name = cut_id(name, &id);
    }
    if (id.len > CLIME_MAX_CALL_NAME || !clime_call_announce(p, text, name)) return false;
    clime_buf_add(&clime_call_of(p)->id, id.ptr, id.len);
    return true;
}

/* Reads the name up to the separator, or up to a brace if the separator may be missing (a form opened by its
 * section). */
static enum clime_call_step read_name(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    bool brace = r->form->begin && !*r->form->begin;
    for (; p->seen < text.len; p->seen++) {
        bool there = clime_marker_at(text, p->seen, r->form->separator);
        if (there || (brace && text.ptr[p->seen] == '{')) {
            r->name_begin = r->from;
            r->name_end = p->seen;
            if (there) p->seen += strlen(r->form->separator);
            r->phase = GAP;
            return CLIME_CALL_DONE;
        }
        if (clime_marker_begins(text, p->seen, r->form->separator)) break;
        if (text.ptr[p->seen] == '\n' || p->seen - r->from > 2 * CLIME_MAX_CALL_NAME) return CLIME_CALL_BAD;
    }
    if (last) p->seen = text.len;
    return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
}

enum clime_call_step clime_call_read_header(struct clime_parse *p, struct clime_str text, bool last) {
    struct clime_call_reader *r = &p->reader;
    if (r->phase == NAME) {
        enum clime_call_step step = read_name(p, text, last);
        if (step != CLIME_CALL_DONE) return step;
    }
    if (r->phase == GAP) {
        p->seen = clime_skip_space(text, p->seen);
        if (p->seen == text.len) return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
        bool none = r->form->end && clime_marker_at(text, p->seen, r->form->end); /* no arguments: the call's end */
        if (!none && r->form->end && !last && clime_marker_begins(text, p->seen, r->form->end)) return CLIME_CALL_MORE;
        if ((!none && text.ptr[p->seen] != '{') || !announce_header(p, text)) return CLIME_CALL_BAD;
        r->args_begin = p->seen;
        r->json_end = p->seen;
        r->phase = none ? CLOSE : ARGUMENTS;
        if (none) r->args_end = p->seen, clime_buf_adds(&clime_call_of(p)->args, "{}");
    }
    while (r->phase == ARGUMENTS && p->seen < text.len) {
        enum clime_json_walked walked = clime_json_walk(&r->walk, text.ptr[p->seen]);
        if (walked == CLIME_WALK_BAD) return CLIME_CALL_BAD;
        p->seen++;
        if (walked != CLIME_WALK_DONE) continue;
        r->args_end = r->json_end = p->seen;
        r->phase = CLOSE;
    }
    copy_args(p, text, p->seen);
    if (r->phase == ARGUMENTS) return last ? CLIME_CALL_BAD : CLIME_CALL_MORE;
    return r->form->end ? clime_call_close(p, text, last, r->form->end) : CLIME_CALL_DONE;
}
