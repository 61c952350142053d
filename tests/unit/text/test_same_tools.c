/* One list of tools, generated, in the forms of chat completions, Responses and Messages: the same prompt and the same
 * grammar of calls. And namespaces, which Responses alone has: what is shown, and how calls go back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/rng.h"
#include "text/chat/allowed_tools.h"
#include "text/chat/conversation.h"
#include "text/chat/responses_answer.h"
#include "text/grammar/grammar.h"
#include "text/output/output_parser.h"
#include "text/template/custom_tools.h"
#include "text/template/template.h"

#define N_LISTS 60
#define N_STEPS 60

static char dir[] = "/tmp/clime-tools-XXXXXX";
static struct clime_tokenizer *tokenizer;
static struct clime_vocab_trie *trie;

static int make_tokenizer(void **state) {
    static const char *const specials[] = {"<end>"};
    static const int32_t eos[] = {256};
    struct clime_error e = {0};
    (void)state;
    if (!mkdtemp(dir) || clime_tokenizer_write_bytes(dir, specials, 1, "<end>", NULL, NULL, &e)) return -1;
    if (clime_tokenizer_load(dir, &tokenizer, &e)) return -1;
    trie = clime_vocab_trie_new(tokenizer, 257, eos, 1);
    return 0;
}

static int remove_tokenizer(void **state) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    (void)state;
    clime_vocab_trie_free(trie);
    clime_tokenizer_free(tokenizer);
    for (size_t i = 0; i < CLIME_COUNT(files); i++) {
        char *path = xasprintf("%s/%s", dir, files[i]);
        unlink(path);
        free(path);
    }
    return rmdir(dir);
}

/* ---- tools ---- */

static struct clime_rng rng;

static int below(int n) {
    return (int)clime_rng_below(&rng, (uint64_t)n);
}

/* A schema, raw. */
static void add_schema(struct clime_buf *out, int depth) {
    static const char *const plain[] = {"{\"type\":\"string\"}",
                                        "{\"type\": \"integer\", \"minimum\": -9007199254740991}",
                                        "{\"type\":\"number\",\"description\":\"h\xC3\xA9 \\\"x\\\" \\u00e9\"}",
                                        "{\"type\":\"boolean\"}",
                                        "{\"enum\":[\"left\",\"right\"]}",
                                        "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"default\":null}",
                                        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"};
    int n = depth == 0 || below(4) == 0 ? below(4) : -1;
    if (n < 0) {
        clime_buf_adds(out, plain[below(CLIME_COUNT(plain))]);
        return;
    }
    clime_buf_adds(out, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < n; i++) {
        clime_buf_printf(out, "%s\"p%d\":", i ? "," : "", i);
        add_schema(out, depth + 1);
    }
    clime_buf_adds(out, "},\"required\":[");
    for (int i = 0; i < n - 1; i++) clime_buf_printf(out, "%s\"p%d\"", i ? "," : "", i);
    clime_buf_adds(out, "],\"additionalProperties\":false}");
}

/* name, description, schema and strict as raw JSON; empty = absent. */
struct made {
    struct clime_buf part[4];
};
enum { NAME, DESCRIPTION, SCHEMA, STRICT, N_PARTS };

static void make(struct made *t, int i) {
    static const char *const words[] = {"", "\"\"", "\"Looks.\"", "\"h\xC3\xA9 \\n \\\"x\\\" \\u00e9 <&>\""};
    static const char *const stricts[] = {"", "true", "false"};
    for (int k = 0; k < N_PARTS; k++) clime_buf_init(&t->part[k], 1 << 16);
    clime_buf_printf(&t->part[NAME], "\"tool_%d%s\"", i, below(3) ? "" : "\\u005fx");
    clime_buf_adds(&t->part[DESCRIPTION], words[below(CLIME_COUNT(words))]);
    add_schema(&t->part[SCHEMA], 0);
    clime_buf_adds(&t->part[STRICT], stricts[below(CLIME_COUNT(stricts))]);
}

/* Its members in an order. */
static void add_members(struct clime_buf *out, const struct made *t, const char *const names[N_PARTS], const char *type,
                        bool shuffled) {
    int order[] = {NAME, DESCRIPTION, SCHEMA, STRICT, N_PARTS};
    const char *comma = "";
    for (int i = N_PARTS; shuffled && i > 0; i--) {
        int k = below(i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    clime_buf_addc(out, '{');
    for (int i = 0; i <= N_PARTS; i++) {
        struct clime_str value = order[i] == N_PARTS ? clime_str_of(type) : clime_buf_str(&t->part[order[i]]);
        if (value.len == 0) continue;
        clime_buf_printf(out, "%s\"%s\": %.*s", comma, order[i] == N_PARTS ? "type" : names[order[i]],
                         CLIME_STR_ARG(value));
        comma = ", ";
    }
    clime_buf_addc(out, '}');
}

/* ---- what is made of them ---- */

static void prompt_of(struct clime_str tools, struct clime_buf *out) {
    static const char source[] = "{% for t in tools %}{{ t | tojson }}\n{% endfor %}";
    struct clime_template *compiled;
    struct clime_error e = {0};
    struct clime_buf vars;
    clime_buf_init(&vars, 1 << 20);
    clime_buf_printf(&vars, "{\"tools\":%.*s}", CLIME_STR_ARG(tools));
    struct clime_str object = clime_buf_str(&vars);
    const struct clime_template_input in = {.vars = &object, .n_vars = 1};
    assert_int_equal(clime_template_compile(clime_str_of(source), &compiled, &e), CLIME_OK);
    if (clime_template_render(compiled, &in, out, NULL, &e)) fail_msg("%s", e.msg);
    clime_template_free(compiled);
    clime_buf_free(&vars);
}

/* A random walk through the first allows the same at each step of the others; all refuse with the same words. */
static void check_grammars(const struct clime_grammar_source *like, const struct clime_str tools[3]) {
    struct clime_grammar *g[3] = {NULL};
    struct clime_grammar_state *s[3];
    struct clime_error e[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        struct clime_grammar_source source = *like;
        source.text = tools[i];
        clime_grammar_compile(trie, &source, &g[i], &e[i]);
        assert_string_equal(e[i].msg, e[0].msg);
    }
    if (e[0].code) return;
    for (int i = 0; i < 3; i++) s[i] = clime_grammar_state_new(g[i]);
    for (int step = 0; step < N_STEPS; step++) {
        uint32_t mask[9] = {0};
        int32_t can[257];
        int n = 0;
        for (int i = 0; i < 3; i++) {
            struct clime_grammar_next next = clime_grammar_state_next(s[i]);
            uint32_t now[9] = {0};
            assert_true(next.allowed || next.may_end);
            if (next.allowed) memcpy(now, next.allowed, sizeof now);
            now[8] = now[8] << 1 | next.may_end;
            if (i == 0) memcpy(mask, now, sizeof mask);
            assert_memory_equal(mask, now, sizeof mask);
        }
        for (int32_t id = 0; id < 256; id++)
            if (mask[id >> 5] >> (id & 31) & 1) can[n++] = id;
        if (n == 0) break;
        int32_t id = can[below(n)];
        for (int i = 0; i < 3; i++) clime_grammar_state_add(s[i], id);
    }
    for (int i = 0; i < 3; i++) {
        clime_grammar_state_free(s[i]);
        clime_grammar_unref(g[i]);
    }
}

static void check_list(const char *const forms[3], const char *format) {
    static enum clime_err (*const read[3])(struct clime_str, struct clime_arena *, struct clime_str *,
                                           struct clime_error *) = {clime_chat_functions, clime_responses_functions,
                                                                    clime_messages_functions};
    struct clime_str tools[3] = {{0}};
    struct clime_buf prompt[3];
    struct clime_error e = {0};
    struct clime_arena a;
    clime_arena_init(&a, 1 << 22);
    for (int i = 0; i < 3; i++) {
        clime_buf_init(&prompt[i], 1 << 20);
        if (read[i](clime_str_of(forms[i]), &a, &tools[i], &e)) fail_msg("%s: %s", forms[i], e.msg);
        prompt_of(tools[i], &prompt[i]);
        assert_string_equal(prompt[i].data, prompt[0].data);
    }
    struct clime_grammar_source source = {.kind = CLIME_GRAMMAR_CALLS, .calls = clime_call_format_find(format)};
    check_grammars(&source, tools); /* forced */
    source.or_kind = CLIME_GRAMMAR_JSON_OBJECT;
    check_grammars(&source, tools); /* beside a format */
    source.or_kind = CLIME_GRAMMAR_NONE;
    source.in_text = true;
    if (clime_call_format_is_marked(source.calls)) check_grammars(&source, tools); /* strict */
    for (int i = 0; i < 3; i++) clime_buf_free(&prompt[i]);
    clime_arena_free(&a);
}

static void test_same(void **state) {
    static const char *const formats[] = {"hermes", "qwen3_coder", "glm45", "llama3", "deepseekv31", "kimi_k2"};
    static const char *const open_names[] = {"name", "description", "parameters", "strict"};
    static const char *const messages_names[] = {"name", "description", "input_schema", "strict"};
    (void)state;
    clime_rng_init(&rng, 32);
    for (int round = 0; round < N_LISTS; round++) {
        struct clime_buf form[3];
        for (int k = 0; k < 3; k++) {
            clime_buf_init(&form[k], 1 << 20);
            clime_buf_addc(&form[k], '[');
        }
        for (int i = 0, n = 1 + below(4); i < n; i++) {
            struct made t;
            make(&t, i);
            for (int k = 0; k < 3 && i; k++) clime_buf_addc(&form[k], ',');
            clime_buf_adds(&form[0], "{\"type\": \"function\", \"function\": ");
            add_members(&form[0], &t, open_names, "", false); /* its order is kept */
            clime_buf_addc(&form[0], '}');
            add_members(&form[1], &t, open_names, "\"function\"", true);
            add_members(&form[2], &t, messages_names, below(2) ? "\"custom\"" : "", true);
            for (int k = 0; k < N_PARTS; k++) clime_buf_free(&t.part[k]);
        }
        for (int k = 0; k < 3; k++) clime_buf_addc(&form[k], ']');
        check_list((const char *const[]){form[0].data, form[1].data, form[2].data},
                   formats[round % (int)CLIME_COUNT(formats)]);
        for (int k = 0; k < 3; k++) clime_buf_free(&form[k]);
    }
}

/* ---- namespaces ---- */

#define F(name) "{\"type\":\"function\",\"name\":\"" name "\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}"
#define SHOWN(name, more) "{\"type\": \"function\", \"function\": {\"name\": \"" name "\"" more "}}\n"
#define NOTHING ", \"parameters\": {\"type\": \"object\", \"properties\": {}}"

static const char spaces[] = "[" F(
    "f") ",{\"type\":\"namespace\",\"name\":\"mcp__x\",\"description\":\"All of x.\",\"tools\":["
         "{\"type\":\"function\",\"description\":\"Looks.\",\"defer_loading\":true,\"name\":\"f\"}," F(
             "\\u0067") ",{\"type\":\"custom\",\"name\":\"run\",\"description\":\"Runs.\"}]},{\"type\":\"web_search\"},"
                        "{\"type\":\"namespace\",\"name\":\"functions\",\"tools\":[" F("h") "]}]";

static void test_namespaces(void **state) {
    static const char want[] =
        SHOWN("f", NOTHING) SHOWN("mcp__x.f", ", \"description\": \"All of x.\\n\\nLooks.\"") SHOWN("mcp__x.g", NOTHING)
            SHOWN("mcp__x.run", ", \"description\": \"Runs.\", \"parameters\": {\"type\": \"object\", \"properties\": "
                                "{\"input\": {\"type\": \"string\"}}, \"required\": [\"input\"]}") SHOWN("h", NOTHING);
    static const char *const bad[][2] = {
        {"[{\"type\":\"namespace\",\"tools\":[]}]", "a namespace needs its name"},
        {"[{\"type\":\"namespace\",\"name\":\"x\",\"tools\":{}}]", "array"},
        {"[{\"type\":\"namespace\",\"name\":\"x\",\"tools\":[{\"type\":\"web_search\"}]}]",
         "has type function or custom"},
        {"[{\"type\":\"namespace\",\"name\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"y\",\"tools\":[]}]}]",
         "has type function or custom"},
        {"[{\"type\":\"new_tool\",\"name\":\"x\"}]", "a tool of type new_tool is not known"},
        {"[{\"type\":\"shell\"}]", "would not know the arguments"},
    };
    struct clime_str tools = {NULL, 0}, given = clime_str_of(spaces);
    struct clime_error e = {0};
    struct clime_buf prompt;
    struct clime_arena a;
    (void)state;
    clime_arena_init(&a, 1 << 22);
    clime_buf_init(&prompt, 1 << 20);
    assert_int_equal(clime_responses_functions(given, &a, &tools, &e), CLIME_OK);
    prompt_of(tools, &prompt);
    assert_string_equal(prompt.data, want);
    assert_true(clime_custom_tool_any(given));
    assert_int_equal(clime_namespace_length(given, clime_str_of("mcp__x.g")), 6);
    assert_int_equal(clime_namespace_length(given, clime_str_of("f")), 0);
    assert_int_equal(clime_namespace_length(given, clime_str_of("h")), 0);
    assert_int_equal(clime_namespace_length(given, clime_str_of("mcp__x.none")), 0);
    assert_true(clime_custom_tool_is(given, clime_str_of("mcp__x.run")));
    assert_false(clime_custom_tool_is(given, clime_str_of("run")));
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        assert_int_equal(clime_responses_functions(clime_str_of(bad[i][0]), &a, &tools, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, bad[i][1])) fail_msg("%s: %s", bad[i][0], e.msg);
    }
    assert_int_equal(
        clime_messages_functions(clime_str_of("[{\"type\":\"new_20270101\",\"name\":\"x\"}]"), &a, &tools, &e),
        CLIME_ERR_INPUT);
    clime_arena_free(&a);
    clime_buf_free(&prompt);
}

/* Calls go back with name and namespace, and come in so in a history. */
static void test_calls_in_namespaces(void **state) {
    static const char *const outputs[][2] = {
        {"{\"name\": \"mcp__x.g\", \"arguments\": {\"n\": 1}}",
         "\"namespace\":\"mcp__x\",\"name\":\"g\",\"arguments\":\"{\\\"n\\\": 1}\""},
        {"{\"name\": \"mcp__x.run\", \"arguments\": {\"input\": \"ls\"}}",
         "\"namespace\":\"mcp__x\",\"name\":\"run\",\"input\":\"ls\""},
        {"{\"name\": \"f\", \"arguments\": {}}", "\",\"name\":\"f\",\"arguments\":\"{}\""},
        {"{\"name\": \"y.g\", \"arguments\": {}}", "\",\"name\":\"y.g\",\"arguments\":\"{}\""},
    };
    static const char input[] =
        "[{\"type\":\"function_call\",\"call_id\":\"c\",\"namespace\":\"mcp__x\",\"name\":\"g\",\"arguments\":\"{}\"},"
        "{\"type\":\"custom_tool_call\",\"call_id\":\"d\",\"namespace\":\"mcp__x\",\"name\":\"run\",\"input\":\"ls\"},"
        "{\"type\":\"function_call\",\"call_id\":\"e\",\"namespace\":\"functions\",\"name\":\"h\",\"arguments\":\"{}\"}"
        ","
        "{\"type\":\"function_call\",\"call_id\":\"e\",\"namespace\":null,\"name\":\"f\",\"arguments\":\"{}\"}]";
    static const char *const names[] = {"\"mcp__x.g\"", "\"mcp__x.run\"", "\"h\"", "\"f\""};
    struct clime_str messages = {NULL, 0};
    struct clime_error e = {0};
    struct clime_arena a;
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(outputs); i++) {
        const struct clime_output_format how = {.reasoning = &clime_output_parsers[0],
                                                .calls = clime_call_format_find("hermes")};
        char *text = xasprintf("<tool_call>\n%s\n</tool_call>", outputs[i][0]);
        struct clime_parse p;
        struct clime_buf out;
        struct clime_jw w;
        clime_buf_init(&out, 1 << 16);
        clime_jw_init(&w, &out);
        clime_parse_begin(&p, &how, clime_str_of(""));
        clime_parse_feed(&p, clime_str_of(text), true);
        const struct clime_answer answer = {.id = clime_str_of("resp_1"),
                                            .parse = &p,
                                            .text = clime_str_of(text),
                                            .end = CLIME_ANSWER_STOP,
                                            .custom = clime_str_of(spaces)};
        clime_responses_write_item(&w, &answer, 0, false);
        if (!strstr(out.data, outputs[i][1])) fail_msg("%s is not in %s", outputs[i][1], out.data);
        assert_int_equal(strstr(out.data, "namespace") != NULL, i < 2);
        clime_parse_free(&p);
        clime_buf_free(&out);
        free(text);
    }
    clime_arena_init(&a, 1 << 20);
    if (clime_responses_conversation(clime_str_of(input), clime_str_of(""), &a, &messages, &e)) fail_msg("%s", e.msg);
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        if (!memmem(messages.ptr, messages.len, names[i], strlen(names[i])))
            fail_msg("%s is not in %.*s", names[i], CLIME_STR_ARG(messages));
    clime_arena_free(&a);
}

/* Which of them a choice of some allows. */
static void test_allowed(void **state) {
    static const struct {
        const char *choice, *prompt; /* NULL: refused */
    } cases[] = {
        {"{\"type\":\"function\",\"name\":\"f\"}", SHOWN("f", NOTHING)},
        {"{\"type\":\"function\",\"name\":\"g\",\"namespace\":\"mcp__x\"},{\"type\":\"function\",\"name\":\"h\","
         "\"namespace\":"
         "\"functions\"}",
         SHOWN("h", NOTHING) SHOWN("mcp__x.g", NOTHING)}, /* in the order of the tools */
        {"{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"namespace\",\"name\":\"y\"}",
         SHOWN("f", NOTHING) SHOWN("y.h", NOTHING) SHOWN("y.i", NOTHING)},
        {"{\"type\":\"function\",\"name\":\"g\"}", NULL},
        {"{\"type\":\"namespace\",\"name\":\"z\"}", NULL},
    };
    static const char given[] = "[" F("f") "," F("h") ",{\"type\":\"namespace\",\"name\":\"mcp__x\",\"tools\":[" F(
        "g") "]},"
             "{\"type\":\"namespace\",\"name\":\"y\",\"tools\":[" F("h") "," F("i") "]}]";
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_str tools = {NULL, 0};
        struct clime_error e = {0};
        struct clime_arena a;
        char *list = xasprintf("[%s]", cases[i].choice);
        const struct clime_allowed_tools allowed = {.list = clime_str_of(list)};
        clime_arena_init(&a, 1 << 20);
        assert_int_equal(clime_responses_functions(clime_str_of(given), &a, &tools, &e), CLIME_OK);
        enum clime_err err = clime_allowed_tools_keep(&allowed, &a, &tools, &e);
        assert_int_equal(err, cases[i].prompt ? CLIME_OK : CLIME_ERR_INPUT);
        if (!err) {
            struct clime_buf prompt;
            clime_buf_init(&prompt, 1 << 20);
            prompt_of(tools, &prompt);
            assert_string_equal(prompt.data, cases[i].prompt);
            clime_buf_free(&prompt);
        }
        clime_arena_free(&a);
        free(list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_namespaces),
                                       cmocka_unit_test(test_calls_in_namespaces), cmocka_unit_test(test_allowed)};
    return cmocka_run_group_tests(tests, make_tokenizer, remove_tokenizer);
}
