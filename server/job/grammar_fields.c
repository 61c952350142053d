/* Reads fields that set a grammar. Called through member tables on HTTP workers; compiles nothing.
 *
 * Clients send every field they know: null, false, "", [] and {} set nothing. (For any JSON use the schema `true`, or
 * json_object.)
 */
#include "server/job/grammar_fields.h"

/* The same grammar under two names, as guidance sends it, counts once. */
static bool set(struct clime_json *j, struct clime_grammar_source *g, enum clime_grammar_kind kind,
                struct clime_str text) {
    if (g->kind == kind && clime_str_eq(g->text, text)) return true;
    if (g->kind != CLIME_GRAMMAR_NONE)
        return clime_json_bad(j, "one grammar at most may be asked for (json_schema, regex, ebnf, structural_tag, "
                                 "structured_outputs, guided_*, response_format)");
    g->kind = kind;
    g->text = text;
    return true;
}

/* A string, verbatim; an empty one sets nothing. */
static bool read_text(struct clime_json *j, struct clime_grammar_source *g, enum clime_grammar_kind kind) {
    struct clime_str s = {"", 0};
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_json_string(j, &s)) return false;
    return s.len == 0 || set(j, g, kind, s);
}

/* JSON, or a string that contains it. */
static bool read_json(struct clime_json *j, struct clime_grammar_source *g, enum clime_grammar_kind kind) {
    struct clime_str raw;
    if (clime_json_peek(j) == CLIME_JSON_STRING) return read_text(j, g, kind);
    if (!clime_json_skip(j, &raw)) return false;
    return clime_lenient_nothing(raw) || set(j, g, kind, raw);
}

bool clime_grammar_read_regex(struct clime_json *j, void *object) {
    return read_text(j, object, CLIME_GRAMMAR_REGEX);
}

bool clime_grammar_read_ebnf(struct clime_json *j, void *object) {
    return read_text(j, object, CLIME_GRAMMAR_EBNF);
}

bool clime_grammar_read_schema(struct clime_json *j, void *object) {
    return read_json(j, object, CLIME_GRAMMAR_SCHEMA);
}

bool clime_grammar_read_tags(struct clime_json *j, void *object) {
    return read_json(j, object, CLIME_GRAMMAR_TAGS);
}

bool clime_grammar_read_choice(struct clime_json *j, void *object) {
    return read_json(j, object, CLIME_GRAMMAR_CHOICE);
}

static bool read_any_object(struct clime_json *j, void *object) {
    bool wanted = false;
    if (!clime_lenient_bool(j, &wanted)) return false;
    return !wanted || set(j, object, CLIME_GRAMMAR_JSON_OBJECT, (struct clime_str){"", 0});
}

/* The white space policy is fixed (docs/protocol.md). */
static bool read_space(struct clime_json *j, void *object) {
    struct clime_str raw;
    (void)object;
    return clime_json_skip(j, &raw) && (clime_lenient_nothing(raw) || clime_json_bad(j, "it is not supported"));
}

static bool read_inert(struct clime_json *j, void *object) {
    (void)object;
    return clime_json_skip(j, NULL);
}

bool clime_grammar_read_object(struct clime_json *j, void *object) {
    static const struct clime_member rows[] = {
        {"json", CLIME_MEMBER_CALL, .read = clime_grammar_read_schema},
        {"regex", CLIME_MEMBER_CALL, .read = clime_grammar_read_regex},
        {"choice", CLIME_MEMBER_CALL, .read = clime_grammar_read_choice},
        {"grammar", CLIME_MEMBER_CALL, .read = clime_grammar_read_ebnf},
        {"json_object", CLIME_MEMBER_CALL, .read = read_any_object},
        {"structural_tag", CLIME_MEMBER_CALL, .read = clime_grammar_read_tags},
        {"whitespace_pattern", CLIME_MEMBER_CALL, .read = read_space},
        {"disable_any_whitespace", CLIME_MEMBER_CALL, .read = read_space},
        {"disable_additional_properties", CLIME_MEMBER_CALL, .read = read_inert}, /* none are added here */
        {"disable_fallback", CLIME_MEMBER_CALL, .read = read_inert},
        {"backend", CLIME_MEMBER_CALL, .read = read_inert},
        {"_backend", CLIME_MEMBER_CALL, .read = read_inert},
        {"_backend_was_auto", CLIME_MEMBER_CALL, .read = read_inert},
    };
    static const struct clime_members members = {rows, CLIME_COUNT(rows)};
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(&members, j, key, object) && !j->failed)
            return clime_json_bad(j, "\"" CLIME_STR_FMT "\" is not supported", (int)(key.len < 60 ? key.len : 60),
                                  key.ptr);
    return !j->failed;
}

bool clime_grammar_read_format(struct clime_json *j, void *object) {
    struct clime_str key, inner, type = {"text", 4}, schema = {NULL, 0}, whole = {j->at, 0};
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    whole.ptr = j->at;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type")) {
            clime_json_string(j, &type);
        } else if (clime_str_is(key, "json_schema") && clime_json_peek(j) == CLIME_JSON_OBJECT) {
            for (clime_json_object(j); clime_json_key(j, &inner);)
                clime_json_skip(j, clime_str_is(inner, "schema") ? &schema : NULL);
        } else {
            clime_json_skip(j, clime_str_is(key, "schema") ? &schema : NULL);
        }
    }
    if (j->failed) return false;
    whole.len = (size_t)(j->at - whole.ptr);
    if (clime_str_is(type, "text")) return true;
    if (clime_str_is(type, "json_object")) return set(j, object, CLIME_GRAMMAR_JSON_OBJECT, (struct clime_str){"", 0});
    if (clime_str_is(type, "structural_tag")) return set(j, object, CLIME_GRAMMAR_TAGS, whole);
    if (!clime_str_is(type, "json_schema"))
        return clime_json_bad(j, "type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(type));
    return schema.ptr ? set(j, object, CLIME_GRAMMAR_SCHEMA, schema) : clime_json_bad(j, "json_schema has no schema");
}
