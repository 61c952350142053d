/* Conversations before a chat template: the one preparation of messages, and what a template is found to show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/shared_data.h"
#include "text/chat/chat_template.h"
#include "text/chat/prepare.h"

static struct clime_str str(const char *z) {
    return clime_str_of(z);
}

/* Prepares for a template that shows all that is asked for. */
static enum clime_err prepare(const char *messages, unsigned shows, struct clime_buf *out, struct clime_error *e) {
    static char source[] = "'user'";
    const struct clime_chat_form f = {
        .source = source, .shows = shows | CLIME_CHAT_ANY_ROLE, .thought = "reasoning_content"};
    return clime_chat_prepare(&f, str(messages), out, NULL, e);
}

/* ---- messages of OpenAI requests ---- */

#define OBJECTS CLIME_CHAT_OBJECT_ARGS

static void test_chat_messages(void **state) {
    (void)state;
    static const struct {
        const char *messages, *want; /* NULL: an error */
        unsigned takes;
    } cases[] = {
        {"[]", "[]", OBJECTS},
        {"[{\"role\":\"user\",\"content\":\"a\\u0041\"}]", "[{\"role\":\"user\",\"content\":\"a\\u0041\"}]", OBJECTS},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"text\":\"b\",\"type\":\"text\"}]}]",
         "[{\"role\":\"user\",\"content\":\"a\\nb\"}]", OBJECTS},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]",
         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", OBJECTS | CLIME_CHAT_PARTS},
        {"[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]", OBJECTS},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", NULL,
         OBJECTS | CLIME_CHAT_PARTS},
        {"[{\"role\":\"assistant\",\"content\":null,\"name\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2.0]}\"}}]}]",
         "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":{\"a\": [1, 2.0]}}}],\"content\":\"\"}]",
         OBJECTS},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":{\"a\":1}}},"
         "{\"function\":{\"arguments\":{}}}]}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":{\"a\":1}}},"
         "{\"function\":{\"arguments\":{}}}]}]",
         OBJECTS},
        /* as the template takes them: a text stays one, an object becomes one where only texts are taken */
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":\"{ }\"}},"
         "{\"function\":{\"arguments\":{\"a\":1}}}]}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":\"{ }\"}},"
         "{\"function\":{\"arguments\":{\"a\":1}}}]}]",
         OBJECTS | CLIME_CHAT_TEXT_ARGS},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":{\"a\":1}}}]}]",
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\\\"a\\\":1}\"}}]}"
         "]",
         CLIME_CHAT_TEXT_ARGS},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"[1]\"}}]}]", NULL,
         CLIME_CHAT_TEXT_ARGS},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]",
         "[{\"role\":\"assistant\",\"content\":\"x\"}]", OBJECTS},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"[1]\"}}]}]", NULL, OBJECTS},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]", NULL, OBJECTS},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{} x\"}}]}]", NULL, OBJECTS},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":5}}]}]", NULL, OBJECTS},
        {"[{\"role\":\"assistant\",\"tool_calls\":5}]", NULL, OBJECTS},
        {"[{\"content\":\"x\"}]", NULL, OBJECTS},
        {"[{\"role\":5}]", NULL, OBJECTS},
        {"[{\"role\":\"user\",\"content\":5}]", NULL, OBJECTS},
        {"[5]", NULL, OBJECTS},
        {"{}", NULL, OBJECTS},
        {"[{\"role\":\"user\"}] x", NULL, OBJECTS},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf out;
        struct clime_error e = {0};
        clime_buf_init(&out, 1 << 16);
        enum clime_err rc = prepare(cases[i].messages, cases[i].takes, &out, &e);
        if (!cases[i].want) {
            assert_int_equal(rc, CLIME_ERR_INPUT);
            assert_int_not_equal(e.msg[0], 0);
        } else if (rc) {
            fail_msg("%s: %s", cases[i].messages, e.msg);
        } else {
            assert_string_equal(out.data, cases[i].want);
        }
        clime_buf_free(&out);
    }
}

#define CALLS(arguments)                                                                                               \
    "{% for m in messages %}{{ 'x' ~ m.role }}{% for c in m.tool_calls %}{% set a = c.function.arguments %}" arguments \
    "{% endfor %}{% endfor %}"

static void test_takes(void **state) {
    (void)state;
    static const struct {
        const char *source;
        unsigned takes;
    } cases[] = {
        {"{% for m in messages %}{{ m.content }}{% endfor %}", OBJECTS},
        {"{% for m in messages %}{{ 'x' + m.content }}{% endfor %}", OBJECTS},
        {"{% for m in messages %}{{ m.content|tojson }}{% endfor %}", OBJECTS},
        {"{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
         OBJECTS | CLIME_CHAT_PARTS},
        {"no content", OBJECTS},
        {CALLS("{% if a is string %}{{ a }}{% else %}{{ a|tojson }}{% endif %}"), OBJECTS | CLIME_CHAT_TEXT_ARGS},
        {CALLS("{{ 'f' + a }}"), CLIME_CHAT_TEXT_ARGS},
        {CALLS("{{ a|tojson }}"), OBJECTS},
        {CALLS("{{ a }}"), CLIME_CHAT_TEXT_ARGS}, /* str() of a mapping is no JSON */
        {CALLS("{% for k, v in a.items() %}{{ k }}{{ v }}{% endfor %}"), OBJECTS},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_chat_form f;
        assert_int_equal(clime_chat_form_open(&f, str(cases[i].source), NULL), CLIME_OK);
        assert_int_equal(f.shows & (CLIME_CHAT_PARTS | CLIME_CHAT_TEXT_ARGS | OBJECTS), cases[i].takes);
        clime_chat_form_close(&f);
    }
}

/* ---- by the template ---- */

#define PLAIN "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
#define U "{\"role\":\"user\",\"content\":\"u\"}"
#define A(more) "{\"role\":\"assistant\",\"content\":\"a\"" more "}"
#define S(text) "{\"role\":\"system\",\"content\":\"" text "\"}"
#define NEWEST_SYSTEM                                                                                                  \
    "{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}{% endfor "  \
    "%}{{ ns.s }}{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
#define CALL_F ",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]"

static void test_by_template(void **state) {
    (void)state;
    static const struct {
        const char *source, *messages, *want; /* a part of the rendered text, or of the error where it begins with ! */
        unsigned lost;
    } cases[] = {
        /* a developer is the system's unless the template names it */
        {PLAIN, "[{\"role\":\"developer\",\"content\":\"d\"}," U "]", "<system>d<user>u", 0},
        {PLAIN "{# 'developer' #}", "[{\"role\":\"developer\",\"content\":\"d\"}," U "]", "<developer>d<user>u", 0},
        {PLAIN, "[{\"role\":\"critic\",\"content\":\"c\"}]", "<critic>c", 0},
        /* what the template drops */
        {"{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}{% endfor %}",
         "[" U ",{\"role\":\"critic\",\"content\":\"c\"}]", "!messages[1]: the chat template does not show messages of",
         0},
        {"{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}{% endfor %}",
         "[{\"role\":\"developer\",\"content\":\"d\"}," U "]", "u", CLIME_LOST_SYSTEM},
        {"{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.content }}{% endif %}{% endfor %}",
         "[{\"role\":\"system\",\"content\":\"s\"}," U "]", "su", 0},
        {"{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.content }}{% endif %}{% endfor %}",
         "[{\"role\":\"system\",\"content\":\"s\"}," U ",{\"role\":\"system\",\"content\":\"t\"}]", "su",
         CLIME_LOST_SYSTEM},
        /* one that shows the newest system message alone (DeepSeek-R1-Distill's) */
        {NEWEST_SYSTEM, "[" S("s") "," U "]", "su", 0},
        {NEWEST_SYSTEM, "[" U "," S("s") "]", "su", 0},
        {NEWEST_SYSTEM, "[" S("s") "," S("t") "," U "]", "tu", CLIME_LOST_SYSTEM},
        {NEWEST_SYSTEM, "[" S("s") "," U "," S("t") "," U "]", "tuu", CLIME_LOST_SYSTEM},
        {"{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}",
         "[{\"role\":\"critic\",\"content\":\"c\"}]", "!no critic", 0},
        {PLAIN, "[" U "," A(CALL_F) "]", "<user>u<assistant>a", CLIME_LOST_CALLS},
        {PLAIN, "[" U "," A(",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}") "]", "!function_call", 0},
        {PLAIN, "[" U "," A(",\"function_call\":null") "]", "<assistant>a", 0},
        /* the older form of calls */
        {PLAIN "{{ messages[-1].tool_calls[0].arguments|tojson }}",
         "[" U "," A(",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}]") "]", "a{\"x\": 1}", 0},
        /* a refusal is what was said */
        {PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"}]", "<assistant>no", 0},
        /* parts, of the roles whose parts the template takes */
        {"{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}"
         "{{ m.content }}{% endif %}{% endfor %}",
         "[{\"content\":[{\"type\":\"text\",\"text\":\"u\"},{\"type\":\"text\",\"text\":\"v\"}],\"role\":\"user\"},"
         "{\"content\":[{\"type\":\"text\",\"text\":\"5\"},{\"type\":\"text\",\"text\":\"6\"}],\"role\":\"tool\"}]",
         "uv5\n6", 0},
        /* reasoning under any name, to the one that the template reads */
        {PLAIN "{{ messages[-1].reasoning_content }}", "[" U "," A(",\"reasoning\":\"r\"") "]", "<assistant>ar", 0},
        {PLAIN "{{ messages[-1].reasoning }}", "[" U "," A(",\"reasoning_content\":\"r\"") "]", "<assistant>ar", 0},
        {PLAIN "{{ messages[-1].thinking }}", "[" U "," A(",\"reasoning\":\"r\"") "]", "<assistant>ar", 0},
        {PLAIN "{{ messages[-1].reasoning_content }}",
         "[" U "," A(",\"reasoning_content\":null,\"reasoning\":\"r\"") "]", "<assistant>ar", 0},
        {PLAIN "{{ messages[-1].reasoning_content }}",
         "[" U "," A(",\"reasoning\":\"r\",\"reasoning_content\":\"\"") "]", "<assistant>ar", 0},
        {PLAIN "{{ messages[-1].reasoning_content }}",
         "[" U "," A(",\"reasoning\":\"r\",\"reasoning_content\":\"c\"") "]", "<assistant>ac", 0},
        {PLAIN, "[" U "," A(",\"reasoning\":\"r\"") "]", "<assistant>a", CLIME_LOST_REASONING},
        {PLAIN, "[" U "," A(",\"reasoning\":\"\"") "]", "<assistant>a", 0},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_chat_form f;
        struct clime_buf list, again, text;
        struct clime_error e = {0};
        unsigned lost = 0;
        clime_buf_init(&list, 1 << 16);
        clime_buf_init(&again, 1 << 16);
        clime_buf_init(&text, 1 << 16);
        assert_int_equal(clime_chat_form_open(&f, str(cases[i].source), &e), CLIME_OK);
        enum clime_err rc = clime_chat_prepare(&f, str(cases[i].messages), &list, &lost, &e);
        if (!rc) {
            assert_int_equal(clime_chat_prepare(&f, clime_buf_str(&list), &again, NULL, &e), CLIME_OK);
            assert_string_equal(again.data, list.data); /* what is prepared stays as it is */
            struct clime_buf vars;
            clime_buf_init(&vars, 1 << 16);
            clime_buf_printf(&vars, "{\"messages\":%s,\"tools\":null}", list.data);
            struct clime_str object = clime_buf_str(&vars);
            struct clime_template_input in = {.vars = &object, .n_vars = 1};
            rc = clime_template_render(f.compiled, &in, &text, NULL, &e);
            clime_buf_free(&vars);
        }
        const char *want = cases[i].want;
        if (rc ? *want != '!' || !strstr(e.msg, want + 1) : *want == '!' || !strstr(text.data, want))
            fail_msg("%s %s: %s", cases[i].source, cases[i].messages, rc ? e.msg : text.data);
        assert_int_equal(lost, cases[i].lost);
        clime_buf_free(&list);
        clime_buf_free(&again);
        clime_buf_free(&text);
        clime_chat_form_close(&f);
    }
}

static void test_tools_and_strictness(void **state) {
    (void)state;
    static const struct {
        const char *source, *tools, *says; /* of the error where the template is strict; NULL: none */
    } cases[] = {
        {PLAIN, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "no place for tools"},
        {PLAIN, "[]", NULL},
        {PLAIN, "null", NULL},
        {PLAIN, "", NULL},
        {PLAIN "{{ tools }}", "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL},
        {PLAIN "{% if messages[0].role == 'system' %}{{ tools }}{% endif %}",
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL},
        {PLAIN "{{ tools }}", "{\"a\":1}", "tools must be a list of objects"},
        {PLAIN "{{ tools }}", "[\"{}\"]", "tools must be a list of objects"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_chat_template t = {.strict = true};
        struct clime_chat_prompt p = {.messages = str("[" U "]"), .tools = str(cases[i].tools)};
        struct clime_error e = {0};
        struct clime_buf out;
        clime_buf_init(&out, 1 << 16);
        assert_int_equal(clime_chat_form_open(&t.plain, str(cases[i].source), &e), CLIME_OK);
        enum clime_err rc = clime_chat_render(&t, &p, &out, NULL, &e);
        if (cases[i].says ? !rc || !strstr(e.msg, cases[i].says) : rc)
            fail_msg("%s %s: %s", cases[i].source, cases[i].tools, rc ? e.msg : out.data);
        clime_buf_free(&out);
        clime_chat_template_close(&t);
    }
}

/* Templates as people publish them: nothing of what they do show is said to be lost. */
static void test_published(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned lacks; /* of calls, tools, reasoning, systems of all places and any role */
    } cases[] = {
        {"Qwen-Qwen3-0.6B", CLIME_CHAT_ANY_ROLE},
        {"Qwen-Qwen2.5-7B-Instruct", CLIME_CHAT_REASONING | CLIME_CHAT_ANY_ROLE},
        {"Qwen3-Coder", CLIME_CHAT_REASONING},
        {"GLM-4.6", CLIME_CHAT_ANY_ROLE},
        {"meta-llama-Llama-3.1-8B-Instruct", CLIME_CHAT_REASONING},
        {"Kimi-K2-Instruct", CLIME_CHAT_REASONING},
        {"deepseek-ai-DeepSeek-V3.1", CLIME_CHAT_TOOLS | CLIME_CHAT_REASONING | CLIME_CHAT_ANY_ROLE},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
         CLIME_CHAT_TOOLS | CLIME_CHAT_REASONING | CLIME_CHAT_ANY_ROLE | CLIME_CHAT_SYSTEMS | CLIME_CHAT_SYSTEMS_APART},
        {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", CLIME_CHAT_REASONING},
    };
    static const unsigned all = CLIME_CHAT_CALLS | CLIME_CHAT_TOOLS | CLIME_CHAT_REASONING | CLIME_CHAT_ANY_ROLE |
                                CLIME_CHAT_SYSTEM | CLIME_CHAT_SYSTEMS | CLIME_CHAT_LATE_SYSTEM |
                                CLIME_CHAT_SYSTEMS_APART;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf source;
        struct clime_chat_form f;
        struct clime_error e = {0};
        char *name = xasprintf("templates/%s.jinja", cases[i].name), *path = shared_data(name);
        clime_buf_init(&source, 1 << 20);
        assert_int_equal(clime_buf_read_file(&source, path, &e), CLIME_OK);
        free(path);
        free(name);
        assert_int_equal(clime_chat_form_open(&f, clime_buf_str(&source), &e), CLIME_OK);
        if ((f.shows & all) != (all & ~cases[i].lacks)) fail_msg("%s lacks %#x", cases[i].name, all & ~f.shows);
        clime_chat_form_close(&f);
        clime_buf_free(&source);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_messages), cmocka_unit_test(test_takes),
        cmocka_unit_test(test_by_template),   cmocka_unit_test(test_tools_and_strictness),
        cmocka_unit_test(test_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
