/* Separates a reply's text and calls. Called through output_parser.c by the owner of the output; calls the readers of
 * single calls (call_json.c, call_tags.c).
 *
 * TEXT looks for an opening marker; SECTION and BETWEEN are where the next call may begin; CALL is inside one.
 * Invariant: [p->at, p->seen) is undecided: pending white space, or the current call. Decisions depend on the bytes
 * alone, never on chunk boundaries.
 */
#include <stdlib.h>

#include "text/output/call_readers.h"

enum state { TEXT, SECTION, BETWEEN, CALL, END };

/* ---- a call begins and ends ---- */

#define MAX_ARGS ((size_t)64 << 20)

struct clime_call *clime_call_of(struct clime_parse *p) {
    return &p->calls.at[p->reader.call];
}

static bool name_fits(const struct clime_parse *p, struct clime_str name) {
    if (!clime_tool_name_fits(name)) return false;
    bool asked = (p->reader.form->bare || p->how.only_known) && p->how.tools && p->how.tools->n > 0;
    return !asked || clime_tools_find(p->how.tools, name);
}

bool clime_call_announce(struct clime_parse *p, struct clime_str text, struct clime_str name) {
    struct clime_calls *c = &p->calls;
    if (!name_fits(p, name)) return false;
    if (c->n == c->size) {
        c->size = c->size ? 2 * c->size : 2;
        c->at = xrealloc(c->at, (size_t)c->size * sizeof *c->at);
    }
    struct clime_call *call = &c->at[c->n];
    clime_buf_init(&call->name, CLIME_MAX_CALL_NAME + 1);
    clime_buf_init(&call->id, CLIME_MAX_CALL_NAME + 1);
    clime_buf_init(&call->args, MAX_ARGS);
    call->void_ = false;
    clime_buf_add(&call->name, name.ptr, name.len);
    p->reader.call = c->n++;
    CHECK(p->seen < text.len);
    clime_segments_add_call(&p->segments, p->at, p->seen + 1, p->reader.call);
    return true;
}

static void begin_call(struct clime_parse *p, const struct clime_call_form *form, size_t at) {
    p->reader = (struct clime_call_reader){.form = form, .call = -1};
    p->seen = at + (form->begin && !form->keep_begin ? strlen(form->begin) : 0);
    p->reader.from = p->seen;
    p->state = CALL;
}

/* Turns the current call into text. */
static void void_call(struct clime_parse *p) {
    if (p->reader.call >= 0) {
        clime_call_of(p)->void_ = true;
        clime_segments_void_last(&p->segments);
    }
    clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, p->seen);
    p->at = p->seen;
    p->state = TEXT;
}

static bool read_call(struct clime_parse *p, struct clime_str text, bool last) {
    enum clime_call_step step = p->reader.form->read(p, text, last);
    if (step == CLIME_CALL_MORE) return false;
    if (step == CLIME_CALL_DONE) {
        const struct clime_buf *args = &clime_call_of(p)->args;
        if (args->full || !clime_json_check(clime_buf_str(args).ptr, args->len, NULL)) step = CLIME_CALL_BAD;
    }
    if (step == CLIME_CALL_BAD) {
        void_call(p);
        return true;
    }
    clime_segments_end_last(&p->segments, p->seen);
    p->at = p->seen;
    p->n_in_section++;
    p->state = p->how.one_call ? END : p->how.calls->section_open ? SECTION : BETWEEN;
    return true;
}

enum clime_call_step clime_call_close(struct clime_parse *p, struct clime_str text, bool last, const char *marker) {
    struct clime_call_reader *r = &p->reader;
    p->seen = clime_skip_space(text, p->seen);
    if (clime_marker_at(text, p->seen, marker)) {
        p->seen += strlen(marker);
        return CLIME_CALL_DONE;
    }
    if (!last && clime_marker_begins(text, p->seen, marker)) return CLIME_CALL_MORE;
    p->seen = r->json_end;
    return CLIME_CALL_DONE;
}

/* ---- where a call may begin ---- */

/* True if the line is a tool's name; *may: it may become one. */
static bool tool_line(const struct clime_parse *p, struct clime_str text, size_t at, bool *may) {
    const struct clime_tools *tools = p->how.tools;
    if (at > p->reply_at && text.ptr[at - 1] != '\n') return false;
    for (int i = 0; tools && i < tools->n; i++) {
        struct clime_str name = tools->at[i].name;
        size_t n = text.len - at < name.len ? text.len - at : name.len;
        if (memcmp(text.ptr + at, name.ptr, n) != 0) continue;
        if (text.len - at <= name.len)
            *may = true;
        else if (text.ptr[at + name.len] == '\n')
            return true;
    }
    return false;
}

/* The form whose opening is at `at`; *may: the text may become one. */
static const struct clime_call_form *form_at(const struct clime_parse *p, struct clime_str text, size_t at, bool *may) {
    const struct clime_call_form *forms = p->how.calls->forms;
    for (int i = 0; i < CLIME_MAX_CALL_FORMS && forms[i].read; i++) {
        const char *begin = forms[i].begin;
        if (!begin) {
            if (tool_line(p, text, at, may)) return &forms[i];
        } else if (!*begin) {
            if (at < text.len && (forms[i].repeats || (p->n_in_section == 0 && at == p->section_at))) return &forms[i];
        } else if (clime_marker_at(text, at, begin)) {
            return &forms[i];
        } else if (clime_marker_begins(text, at, begin)) {
            *may = true;
        }
    }
    return NULL;
}

static void open_section(struct clime_parse *p, size_t at) {
    p->seen = p->section_at = at + strlen(p->how.calls->section_open);
    p->n_in_section = 0;
    p->state = SECTION;
}

/* Text up to the next opening. White space before it is dropped, unless the format keeps it. */
static bool read_text(struct clime_parse *p, struct clime_str text, bool last) {
    const struct clime_call_format *f = p->how.calls;
    const struct clime_call_form *form = NULL;
    size_t solid = p->at, at = p->seen > p->at ? p->seen : p->at;
    bool opens = false;
    for (; at < text.len; at++) {
        bool may = false;
        if (p->how.either && solid > p->reply_at) {
            solid = at = text.len;
            break;
        }
        if (f->section_open) {
            opens = clime_marker_at(text, at, f->section_open);
            may = clime_marker_begins(text, at, f->section_open);
        } else {
            form = form_at(p, text, at, &may);
        }
        if (opens || form || (may && !last)) break;
        if (f->keeps_space || !clime_is_space(text.ptr[at])) solid = at + 1;
    }
    if (last && !opens && !form) solid = text.len;
    clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, solid);
    p->at = solid;
    p->seen = at;
    if (opens) open_section(p, at);
    if (form) begin_call(p, form, at);
    return opens || form;
}

static size_t skip_between(const struct clime_parse *p, struct clime_str text, size_t at) {
    const char *more = p->how.calls->between ? p->how.calls->between : "";
    while (at < text.len && (clime_is_space(text.ptr[at]) || (text.ptr[at] && strchr(more, text.ptr[at])))) at++;
    return at;
}

/* Back to text: no call here. Drops white space after a call; an empty section is text. */
static bool leave(struct clime_parse *p, struct clime_str text, size_t at) {
    if (p->state == SECTION && p->n_in_section == 0) {
        clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, at);
        p->at = at;
    } else {
        p->at = clime_skip_space(text, p->at);
    }
    p->seen = p->at;
    p->state = TEXT;
    return true;
}

/* In a section, or after a call without one: the next call, the section's end, or text. */
static bool read_between(struct clime_parse *p, struct clime_str text, bool last) {
    const struct clime_call_format *f = p->how.calls;
    bool section = p->state == SECTION, may = false;
    size_t at = p->seen = skip_between(p, text, p->seen);
    if (at < text.len) {
        if (section && f->section_close && p->n_in_section > 0) {
            if (clime_marker_at(text, at, f->section_close)) {
                p->state = f->goes_on ? TEXT : END;
                p->at = p->seen = at + strlen(f->section_close);
                return true;
            }
            may = clime_marker_begins(text, at, f->section_close);
        }
        if (section && p->n_in_section > 0 && clime_marker_at(text, at, f->section_open)) {
            open_section(p, at);
            return true;
        }
        may |= section && p->n_in_section > 0 && clime_marker_begins(text, at, f->section_open);
        const struct clime_call_form *form = form_at(p, text, at, &may);
        if (form) {
            begin_call(p, form, at);
            return true;
        }
        if (!may || last) return leave(p, text, at);
        return false;
    }
    return last && leave(p, text, at);
}

void clime_calls_feed(struct clime_parse *p, struct clime_str text, bool last) {
    for (bool on = true; on;) {
        switch ((enum state)p->state) {
        case TEXT:
            on = read_text(p, text, last);
            break;
        case SECTION:
        case BETWEEN:
            on = read_between(p, text, last);
            break;
        case CALL:
            on = read_call(p, text, last);
            break;
        case END: /* as in SGLang and vLLM, text after the section is not part of the reply */
            p->at = p->seen = text.len;
            on = false;
            break;
        }
    }
}
