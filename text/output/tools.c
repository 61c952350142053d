/* Reads a request's tools, and converts parameter values. Called by request parsers (tools) and call readers (values);
 * no state.
 */
#include "text/output/tools.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- types of a schema ---- */

unsigned clime_schema_type(struct clime_str name) {
    static const struct {
        const char *name;
        unsigned type;
        bool begins; /* "uint32", "num..." */
    } rows[] = {
        {"string", CLIME_TYPE_STRING, false},   {"str", CLIME_TYPE_STRING, false},
        {"text", CLIME_TYPE_STRING, false},     {"varchar", CLIME_TYPE_STRING, false},
        {"char", CLIME_TYPE_STRING, false},     {"enum", CLIME_TYPE_STRING, false},
        {"int", CLIME_TYPE_INTEGER, true},      {"uint", CLIME_TYPE_INTEGER, true},
        {"long", CLIME_TYPE_INTEGER, true},     {"short", CLIME_TYPE_INTEGER, true},
        {"unsigned", CLIME_TYPE_INTEGER, true}, {"num", CLIME_TYPE_NUMBER, true},
        {"float", CLIME_TYPE_NUMBER, true},     {"double", CLIME_TYPE_NUMBER, true},
        {"boolean", CLIME_TYPE_BOOLEAN, false}, {"bool", CLIME_TYPE_BOOLEAN, false},
        {"binary", CLIME_TYPE_BOOLEAN, false},  {"object", CLIME_TYPE_OBJECT, false},
        {"dict", CLIME_TYPE_OBJECT, true},      {"array", CLIME_TYPE_ARRAY, false},
        {"arr", CLIME_TYPE_ARRAY, false},       {"list", CLIME_TYPE_ARRAY, true},
        {"null", CLIME_TYPE_NULL, false},
    };
    if (clime_str_is(name, "interval")) return CLIME_TYPE_OTHER; /* starts like an integer type, but is not */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].begins ? clime_str_starts(name, rows[i].name) : clime_str_is(name, rows[i].name))
            return rows[i].type;
    return CLIME_TYPE_OTHER;
}

static unsigned read_type(struct clime_json *j) {
    struct clime_str name;
    unsigned types = 0;
    if (clime_json_peek(j) == CLIME_JSON_STRING) return clime_json_string(j, &name) ? clime_schema_type(name) : 0;
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) return clime_json_skip(j, NULL), 0;
    for (clime_json_array(j); clime_json_item(j);) types |= read_type(j);
    return types;
}

static unsigned read_enum(struct clime_json *j) {
    static const unsigned of[] = {[CLIME_JSON_ERROR] = 0,
                                  [CLIME_JSON_NULL] = CLIME_TYPE_NULL,
                                  [CLIME_JSON_BOOL] = CLIME_TYPE_BOOLEAN,
                                  [CLIME_JSON_NUMBER] = CLIME_TYPE_NUMBER,
                                  [CLIME_JSON_STRING] = CLIME_TYPE_STRING,
                                  [CLIME_JSON_ARRAY] = CLIME_TYPE_ARRAY,
                                  [CLIME_JSON_OBJECT] = CLIME_TYPE_OBJECT};
    unsigned types = 0;
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) return clime_json_skip(j, NULL), 0;
    for (clime_json_array(j); clime_json_item(j);) {
        types |= of[clime_json_peek(j)];
        clime_json_skip(j, NULL);
    }
    return types;
}

/* Context for resolving references in a tool's parameters. */
struct schema {
    struct clime_str root;
    size_t read; /* bytes searched for references */
    int depth;   /* references within references */
};

#define MAX_REFERENCES 16
#define MAX_READ ((size_t)32 << 20)

/* The raw text of an object's member; empty = none. */
static struct clime_str member_of(struct clime_str object, struct clime_str name, struct clime_arena *a) {
    struct clime_json in;
    struct clime_error ignored = {0};
    struct clime_str key, raw, found = {"", 0};
    clime_json_init(&in, object.ptr, object.len, a, &ignored);
    if (clime_json_peek(&in) == CLIME_JSON_OBJECT)
        for (clime_json_object(&in); clime_json_key(&in, &key);)
            if (clime_json_skip(&in, &raw) && clime_str_eq(key, name)) found = raw;
    return found;
}

static unsigned schema_types(struct clime_json *j, struct schema *s);

/* The value at "#/$defs/NAME"; empty = none, escapes in the reference, or over the search limits. */
static struct clime_str referred(struct schema *s, struct clime_json *j) {
    static const struct clime_str nothing = {"", 0};
    struct clime_str ref, at = s->root;
    if (clime_json_peek(j) != CLIME_JSON_STRING) return clime_json_skip(j, NULL), nothing;
    if (!clime_json_string(j, &ref) || !clime_str_starts(ref, "#/") || s->depth == MAX_REFERENCES) return nothing;
    for (size_t from = 2, n; from <= ref.len && at.len > 0; from += n + 1) {
        const char *slash = memchr(ref.ptr + from, '/', ref.len - from);
        n = slash ? (size_t)(slash - ref.ptr) - from : ref.len - from;
        if ((s->read += at.len) > MAX_READ) return nothing;
        at = member_of(at, (struct clime_str){ref.ptr + from, n}, j->arena);
    }
    return at;
}

static unsigned read_reference(struct clime_json *j, struct schema *s) {
    struct clime_str to = referred(s, j);
    struct clime_json in;
    struct clime_error ignored = {0};
    if (to.len == 0) return 0;
    clime_json_init(&in, to.ptr, to.len, j->arena, &ignored);
    s->depth++;
    unsigned types = schema_types(&in, s);
    s->depth--;
    return types;
}

static unsigned read_choices(struct clime_json *j, struct schema *s) {
    unsigned types = 0;
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) return clime_json_skip(j, NULL), 0;
    for (clime_json_array(j); clime_json_item(j);) types |= schema_types(j, s);
    return types;
}

/* The types that a schema allows: type (a name or a list), enum, anyOf, oneOf, allOf, a reference; implied by its
 * keywords if it names none, string if it has none. Reads one value. */
static unsigned schema_types(struct clime_json *j, struct schema *s) {
    struct clime_str key;
    unsigned types = 0, meant = 0;
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) return clime_json_skip(j, NULL), CLIME_TYPE_STRING;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            types |= read_type(j);
        else if (clime_str_is(key, "enum"))
            types |= read_enum(j);
        else if (clime_str_is(key, "anyOf") || clime_str_is(key, "oneOf") || clime_str_is(key, "allOf"))
            types |= read_choices(j, s);
        else if (clime_str_is(key, "$ref"))
            types |= read_reference(j, s);
        else if (clime_json_skip(j, NULL))
            meant |= clime_str_is(key, "properties") ? CLIME_TYPE_OBJECT
                     : clime_str_is(key, "items")    ? CLIME_TYPE_ARRAY
                                                     : 0;
    }
    return types ? types : meant ? meant : CLIME_TYPE_STRING;
}

/* ---- tools ---- */

/* A doubling array in the arena; old copies stay until the arena is freed. */
static void *grow(struct clime_json *j, const void *old, int n, size_t each) {
    if (n && (n & (n - 1))) return (void *)(uintptr_t)old;
    void *more = clime_arena_alloc(j->arena, (n ? 2 * (size_t)n : 1) * each);
    if (!more) return clime_json_bad(j, "the tools take too much memory"), NULL;
    if (n) memcpy(more, old, (size_t)n * each);
    return more;
}

static void read_params(struct clime_json *j, struct clime_tool *t, struct schema *s) {
    struct clime_str key;
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) {
        clime_json_skip(j, NULL);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);) {
        /* appended: several schemas may have properties */
        struct clime_tool_param *params = grow(j, t->params, t->n_params, sizeof *params);
        if (!params) return;
        params[t->n_params++] = (struct clime_tool_param){key, schema_types(j, s)};
        t->params = params;
    }
}

static void read_properties(struct clime_json *j, struct clime_tool *t, struct schema *s) {
    struct clime_str key;
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) {
        clime_json_skip(j, NULL);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "properties")) {
            read_params(j, t, s);
        } else if (clime_str_is(key, "allOf") && clime_json_peek(j) == CLIME_JSON_ARRAY) {
            for (clime_json_array(j); clime_json_item(j);) read_properties(j, t, s);
        } else if (clime_str_is(key, "$ref")) {
            struct clime_str to = referred(s, j);
            struct clime_json in = *j;
            if (to.len == 0) continue;
            clime_json_init(&in, to.ptr, to.len, j->arena, j->err);
            s->depth++;
            read_properties(&in, t, s);
            s->depth--;
            j->failed |= in.failed;
        } else {
            clime_json_skip(j, NULL);
        }
    }
}

static void read_schema(struct clime_json *j, struct clime_tool *t) {
    struct schema s = {.depth = 0};
    struct clime_json again = *j;
    if (!clime_json_skip(j, &s.root)) return;
    read_properties(&again, t, &s);
    j->failed = again.failed;
}

static void read_tool(struct clime_json *j, struct clime_tool *t, bool inner) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "function") && !inner && clime_json_peek(j) == CLIME_JSON_OBJECT)
            read_tool(j, t, true);
        else if (clime_str_is(key, "name") && clime_json_peek(j) == CLIME_JSON_STRING)
            clime_json_string(j, &t->name);
        else if (clime_str_is(key, "parameters"))
            read_schema(j, t);
        else if (clime_str_is(key, "strict") && clime_json_peek(j) == CLIME_JSON_BOOL)
            clime_json_bool(j, &t->strict);
        else
            clime_json_skip(j, NULL);
    }
}

bool clime_tool_name_fits(struct clime_str name) {
    if (name.len == 0 || name.len > CLIME_MAX_CALL_NAME) return false;
    for (size_t i = 0; i < name.len; i++)
        if (!name.ptr[i] || strchr(" \t\r\n\"\\{}<>()[]", name.ptr[i])) return false;
    return true;
}

enum clime_err clime_tools_read(struct clime_str json, struct clime_arena *a, struct clime_tools *out,
                                struct clime_error *e) {
    struct clime_json j;
    struct clime_tool *tools = NULL;
    *out = (struct clime_tools){NULL, 0};
    clime_json_init(&j, json.ptr, json.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        if (!(tools = grow(&j, tools, out->n, sizeof *tools))) break;
        tools[out->n] = (struct clime_tool){.n_params = 0};
        read_tool(&j, &tools[out->n], false);
        if (!j.failed && tools[out->n].name.len == 0)
            clime_json_bad(&j, "tool %d has no function with a name", out->n);
        else if (!j.failed && !clime_tool_name_fits(tools[out->n].name))
            clime_json_bad(
                &j,
                "the name of tool %d: at most %d bytes without white space, quotes, backslashes and brackets, "
                "or no call of it could be told from text",
                out->n, CLIME_MAX_CALL_NAME);
        out->at = tools;
        out->n++;
    }
    if (clime_json_end(&j)) return CLIME_OK;
    return clime_error_prefix(e, "tools");
}

const struct clime_tool *clime_tools_find(const struct clime_tools *t, struct clime_str name) {
    for (int i = 0; t && i < t->n; i++)
        if (clime_str_eq(t->at[i].name, name)) return &t->at[i];
    return NULL;
}

unsigned clime_tools_types(const struct clime_tools *t, struct clime_str tool, struct clime_str param) {
    const struct clime_tool *f = clime_tools_find(t, tool);
    for (int i = 0; f && i < f->n_params; i++)
        if (clime_str_eq(f->params[i].name, param)) return f->params[i].types;
    return 0;
}

/* ---- values ---- */

static struct clime_str trim(struct clime_str s) {
    while (s.len && isspace((unsigned char)s.ptr[0])) s.ptr++, s.len--;
    while (s.len && isspace((unsigned char)s.ptr[s.len - 1])) s.len--;
    return s;
}

static bool is_word(struct clime_str s, const char *word) {
    size_t n = strlen(word);
    if (s.len != n) return false;
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)s.ptr[i]) != word[i]) return false;
    return true;
}

static bool is_integer(struct clime_str s) {
    size_t i = s.len && s.ptr[0] == '-';
    if (i == s.len || (s.ptr[i] == '0' && s.len > i + 1)) return false;
    while (i < s.len && isdigit((unsigned char)s.ptr[i])) i++;
    return i == s.len;
}

static bool is_json(struct clime_str s, char first) {
    return s.len && s.ptr[0] == first && clime_json_check(s.ptr, s.len, NULL);
}

/* True for a JSON number in double range. */
static bool is_number(struct clime_str s) {
    char z[64];
    if (s.len == 0 || s.len >= sizeof z || !(s.ptr[0] == '-' || isdigit((unsigned char)s.ptr[0])) ||
        !clime_json_check(s.ptr, s.len, NULL))
        return false;
    memcpy(z, s.ptr, s.len);
    z[s.len] = '\0';
    return isfinite(strtod(z, NULL));
}

/* True if all numbers in a container's text are in double range. */
static bool all_finite(struct clime_str s) {
    bool string = false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '"') string = !string;
        if (string && s.ptr[i] == '\\') i++;
        if (string || !(s.ptr[i] == '-' || isdigit((unsigned char)s.ptr[i]))) continue;
        size_t n = 1;
        while (i + n < s.len && strchr("0123456789+-.eE", s.ptr[i + n]) && s.ptr[i + n]) n++;
        if (!is_number((struct clime_str){s.ptr + i, n})) return false;
        i += n - 1;
    }
    return true;
}

static bool is_container(struct clime_str s, char first) {
    return is_json(s, first) && all_finite(s);
}

/* The text as a value of one of the types, or NULL. */
static const char *typed(struct clime_str s, unsigned types, struct clime_str *json) {
    *json = s;
    bool yes = is_word(s, "true") || clime_str_is(s, "1"), no = is_word(s, "false") || clime_str_is(s, "0");
    if ((types & CLIME_TYPE_NULL) && is_word(s, "null")) return "null";
    if ((types & CLIME_TYPE_INTEGER) && is_integer(s)) return "";
    if ((types & CLIME_TYPE_NUMBER) && is_number(s)) return "";
    if ((types & CLIME_TYPE_BOOLEAN) && (yes || no)) return yes ? "true" : "false";
    if ((types & CLIME_TYPE_OBJECT) && is_container(s, '{')) return "";
    if ((types & CLIME_TYPE_ARRAY) && is_container(s, '[')) return "";
    if (!(types & CLIME_TYPE_OTHER) || s.len == 0 || !clime_json_check(s.ptr, s.len, NULL)) return NULL;
    return s.ptr[0] == '"' || all_finite(s) ? "" : NULL;
}

void clime_tool_value(struct clime_str text, unsigned types, struct clime_buf *out) {
    struct clime_str json;
    const char *word = typed(trim(text), types, &json);
    if (word && *word) {
        clime_buf_adds(out, word);
    } else if (word) {
        clime_buf_add(out, json.ptr, json.len);
    } else {
        clime_buf_addc(out, '"');
        clime_json_escape(out, text);
        clime_buf_addc(out, '"');
    }
}

void clime_json_escape(struct clime_buf *out, struct clime_str text) {
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c == '"' || c == '\\')
            clime_buf_printf(out, "\\%c", c);
        else if (c == '\n')
            clime_buf_adds(out, "\\n");
        else if (c == '\t')
            clime_buf_adds(out, "\\t");
        else if (c < 0x20)
            clime_buf_printf(out, "\\u%04x", c);
        else
            clime_buf_addc(out, (char)c);
    }
}
