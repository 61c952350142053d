/* Shared by the answer writers; no state. */
#include "text/chat/answer.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/hash.h"
#include "common/http/sse.h"
#include "text/template/custom_tools.h"

#define MAX_TEXT ((size_t)256 << 20)

void clime_answer_call_id(const struct clime_answer *a, int call, char id[CLIME_ANSWER_ID]) {
    const struct clime_buf *given = &a->parse->calls.at[call].id;
    if (given->len > 0)
        snprintf(id, CLIME_ANSWER_ID, "%.*s", (int)given->len, given->data);
    else
        clime_answer_item_id(a, call, "call", id);
}

void clime_answer_item_id(const struct clime_answer *a, int n, const char *prefix, char id[CLIME_ANSWER_ID]) {
    uint64_t h[2], words[3] = {clime_hash_bytes(a->id.ptr, a->id.len, 0), (uint64_t)a->index, (uint64_t)n};
    h[0] = clime_hash64(words, 3);
    h[1] = clime_hash64(h, 1);
    snprintf(id, CLIME_ANSWER_ID, "%s_%016" PRIx64 "%08" PRIx32, prefix, h[0], (uint32_t)h[1]);
}

bool clime_answer_is_custom(const struct clime_answer *a, int call) {
    return clime_custom_tool_is(a->custom, clime_buf_str(&a->parse->calls.at[call].name));
}

void clime_answer_put_name(struct clime_jw *w, const struct clime_answer *a, int call) {
    struct clime_str name = clime_buf_str(&a->parse->calls.at[call].name);
    size_t space = clime_namespace_length(a->custom, name);
    if (space > 0) {
        clime_jw_put_str(w, "namespace", (struct clime_str){name.ptr, space});
        name.ptr += space + 1;
        name.len -= space + 1;
    }
    clime_jw_put_str(w, "name", name);
}

struct clime_str clime_answer_segment(const struct clime_answer *a, int segment) {
    const struct clime_segment *g = &a->parse->segments.at[segment];
    return (struct clime_str){a->text.ptr + g->begin, g->end - g->begin};
}

void clime_answer_write_kind(struct clime_jw *w, const struct clime_answer *a, enum clime_segment_kind kind) {
    struct clime_buf text;
    clime_buf_init(&text, MAX_TEXT);
    clime_segments_text(&a->parse->segments, a->text, kind, &text);
    clime_jw_str(w, clime_buf_str(&text));
    clime_buf_free(&text);
}

void clime_answer_close(struct clime_jw *w, const char *weight_version) {
    clime_jw_key(w, "metadata");
    clime_jw_object(w);
    clime_jw_put_strz(w, "weight_version", weight_version);
    clime_jw_close(w);
    clime_jw_close(w);
}

struct clime_jw clime_answer_open_event(const struct clime_answer_events *to, const char *name) {
    struct clime_jw w;
    clime_buf_clear(to->scratch);
    clime_jw_init(&w, to->scratch);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", name);
    return w;
}

void clime_answer_send_event(struct clime_jw *w, const struct clime_answer_events *to, const char *name) {
    clime_jw_close(w);
    if (to->scratch->full)
        to->sse->full = true;
    else
        clime_sse_frame_named(to->sse, name, clime_buf_str(to->scratch));
}
