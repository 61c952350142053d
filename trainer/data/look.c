/* Survey of a data file's members. Called by clime-train data, main thread. */
#include "trainer/data/look.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/utf8.h"
#include "trainer/data/source.h"

#define EXAMPLE_BYTES 60

struct reading {
    struct clime_look *l;
    const char *source;
};

static struct clime_look_field *field_of(struct clime_look *l, struct clime_str key) {
    for (int i = 0; i < l->n_fields; i++)
        if (clime_str_is(key, l->fields[i].name)) return &l->fields[i];
    if (l->n_fields == CLIME_LOOK_FIELDS) return NULL;
    struct clime_look_field *f = &l->fields[l->n_fields++];
    f->name = xstrndup(key.ptr, key.len);
    return f;
}

/* The beginning of a value on one line, cut between characters. */
static char *shorten(struct clime_str raw) {
    size_t n = 0;
    while (n < raw.len && n < EXAMPLE_BYTES) {
        uint32_t cp;
        int k = clime_utf8_decode(raw.ptr + n, raw.len - n, &cp);
        n += (size_t)(k > 0 ? k : -k);
    }
    char *out = xasprintf("%.*s%s", (int)n, raw.ptr, n < raw.len ? "..." : "");
    for (char *at = out; *at; at++)
        if (*at == '\n' || *at == '\t' || *at == '\r') *at = ' ';
    return out;
}

static enum clime_err look_at(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    struct reading *r = arg;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_arena a;
    struct clime_str key, raw;
    clime_arena_init(&a, json.len + 4096);
    clime_json_init(&j, json.ptr, json.len, &a, &je);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        enum clime_json_kind kind = clime_json_peek(&j);
        struct clime_look_field *f = field_of(r->l, key);
        if (!clime_json_skip(&j, &raw) || !f) continue;
        f->n++;
        f->kinds |= 1u << kind;
        if (!f->example) f->example = shorten(raw);
    }
    bool good = clime_json_end(&j);
    clime_arena_free(&a);
    r->l->n++;
    if (good) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "%.*s:%" PRId64 ": %s", (int)strcspn(r->source, "@"), r->source, number,
                      je.msg);
}

enum clime_err clime_look_add(struct clime_look *l, const char *source, struct clime_error *e) {
    struct reading r = {l, source};
    return clime_source_rows(source, look_at, &r, e);
}

const struct clime_look_field *clime_look_find(const struct clime_look *l, const char *name) {
    for (int i = 0; i < l->n_fields; i++)
        if (!strcmp(l->fields[i].name, name)) return &l->fields[i];
    return NULL;
}

void clime_look_print(const struct clime_look *l, struct clime_buf *out) {
    static const char *const names[] = {
        [CLIME_JSON_NULL] = "null",   [CLIME_JSON_BOOL] = "bool",  [CLIME_JSON_NUMBER] = "number",
        [CLIME_JSON_STRING] = "text", [CLIME_JSON_ARRAY] = "list", [CLIME_JSON_OBJECT] = "object"};
    for (int i = 0; i < l->n_fields; i++) {
        const struct clime_look_field *f = &l->fields[i];
        struct clime_buf kinds;
        clime_buf_init(&kinds, 256);
        for (unsigned k = CLIME_JSON_NULL; k <= CLIME_JSON_OBJECT; k++)
            if (f->kinds & 1u << k) clime_buf_printf(&kinds, "%s%s", kinds.len ? "|" : "", names[k]);
        clime_buf_printf(out, "  %-16s %8" PRId64 "  %-12s %s\n", f->name, f->n, clime_buf_str(&kinds).ptr, f->example);
        clime_buf_free(&kinds);
    }
}

void clime_look_free(struct clime_look *l) {
    for (int i = 0; i < l->n_fields; i++) {
        free(l->fields[i].name);
        free(l->fields[i].example);
    }
    l->n_fields = 0;
}
