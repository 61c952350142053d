/* Chat templates against their authority: Jinja2 3.1.6 as transformers sets it up. Stored cases in tests/golden (made
 * by template_cases.py), the published templates with their goldens from the shared data where present; then what Jinja
 * has no word on: limits, spans, threads, JSON input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/scan.h"
#include "tests/unit/shared_data.h"
#include "text/template/template.h"

#define JULY_26_2025 1753531200 /* noon UTC: the day that the shared goldens were made on */

static struct clime_str str(const char *z) {
    return clime_str_of(z);
}

/* Compiles and renders with one object of variables; out is cleared first. */
static enum clime_err render(struct clime_str source, struct clime_str vars, struct clime_buf *out,
                             struct clime_error *e) {
    struct clime_template *t = NULL;
    struct clime_template_input in = {.vars = &vars, .n_vars = 1, .now = JULY_26_2025};
    clime_buf_clear(out);
    enum clime_err rc = clime_template_compile(source, &t, e);
    if (!rc) rc = clime_template_render(t, &in, out, NULL, e);
    clime_template_free(t);
    return rc;
}

/* ---- goldens ---- */

struct golden {
    struct clime_str vars, template, context, output, error;
};

/* Reads one line; members that are objects are kept as text. */
static void read_golden(struct clime_str line, struct clime_arena *a, struct golden *g) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key;
    *g = (struct golden){0};
    clime_json_init(&j, line.ptr, line.len, a, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "template"))
            clime_json_string(&j, &g->template);
        else if (clime_str_is(key, "context") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &g->context);
        else if (clime_str_is(key, "output"))
            clime_json_string(&j, &g->output);
        else if (clime_str_is(key, "error"))
            clime_json_string(&j, &g->error);
        else
            clime_json_skip(&j, &g->vars);
    }
    if (!clime_json_end(&j)) fail_msg("golden: %s", e.msg);
}

static bool agrees(const struct golden *g, enum clime_err rc, const struct clime_buf *out,
                   const struct clime_error *e) {
    bool fine = g->error.ptr ? rc != CLIME_OK : rc == CLIME_OK && clime_str_eq(clime_buf_str(out), g->output);
    if (!fine)
        print_error("%.*s %.*s\n  want %.*s\n  got  %s\n", CLIME_STR_ARG(g->template), CLIME_STR_ARG(g->context),
                    CLIME_STR_ARG(g->error.ptr ? g->error : g->output), rc ? e->msg : out->data);
    return fine;
}

/* Cuts the next line off text. */
static bool next_line(struct clime_str *text, struct clime_str *line) {
    if (text->len == 0) return false;
    const char *nl = memchr(text->ptr, '\n', text->len);
    line->ptr = text->ptr;
    line->len = nl ? (size_t)(nl - text->ptr) : text->len;
    size_t used = line->len + (nl != NULL);
    *text = (struct clime_str){text->ptr + used, text->len - used};
    return true;
}

static void test_stored_cases(void **state) {
    (void)state;
    struct clime_buf file, out;
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_str line, vars = {0};
    struct golden g;
    int n = 0, n_bad = 0;
    clime_buf_init(&file, 1 << 22);
    clime_buf_init(&out, 1 << 22);
    if (clime_buf_read_file(&file, "tests/golden/template_cases.jsonl", &e)) fail_msg("%s", e.msg);
    for (struct clime_str text = clime_buf_str(&file); next_line(&text, &line); n++) {
        clime_arena_init(&a, 1 << 22);
        read_golden(line, &a, &g);
        if (!vars.ptr)
            vars = g.vars; /* the first line */
        else
            n_bad += !agrees(&g, render(g.template, vars, &out, &e), &out, &e);
        clime_arena_free(&a);
    }
    clime_buf_free(&file);
    clime_buf_free(&out);
    assert_true(n > 900);
    assert_int_equal(n_bad, 0);
}

static const char *const PUBLISHED[] = {
    "GLM-4.6",
    "GLM-4.7-Flash",
    "Kimi-K2-Instruct",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "glm4moe",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "tool_chat_template_glm4",
};

struct context {
    struct clime_str id, vars;
};

static int read_contexts(struct clime_str text, struct clime_arena *a, struct context *v, int max) {
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key;
    int n = 0;
    clime_json_init(&j, text.ptr, text.len, a, &e);
    for (clime_json_array(&j); clime_json_item(&j); n++) {
        assert_true(n < max);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "id"))
                clime_json_string(&j, &v[n].id);
            else
                clime_json_skip(&j, &v[n].vars);
        }
    }
    if (!clime_json_end(&j)) fail_msg("contexts.json: %s", e.msg);
    return n;
}

static void read_shared(struct clime_buf *b, const char *dir, const char *name, const char *suffix) {
    struct clime_error e = {0};
    char *path = xasprintf("%s/%s%s", dir, name, suffix);
    clime_buf_clear(b);
    if (clime_buf_read_file(b, path, &e)) fail_msg("%s", e.msg);
    free(path);
}

static void test_published_templates(void **state) {
    (void)state;
    char *dir = shared_data("templates");
    struct clime_buf contexts, source, goldens, out;
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_str line;
    struct context known[100];
    struct golden g;
    int n = 0, n_bad = 0;
    setenv("TZ", "UTC", 1);
    clime_buf_init(&contexts, 1 << 22);
    clime_buf_init(&source, 1 << 22);
    clime_buf_init(&goldens, 1 << 22);
    clime_buf_init(&out, 1 << 22);
    clime_arena_init(&a, 1 << 24);
    char *path = xasprintf("%s/contexts.json", dir);
    enum clime_err rc = clime_buf_read_file(&contexts, path, &e);
    free(path);
    assert_int_equal(rc, CLIME_OK);
    int n_contexts = read_contexts(clime_buf_str(&contexts), &a, known, (int)CLIME_COUNT(known));
    for (size_t i = 0; i < CLIME_COUNT(PUBLISHED); i++) {
        read_shared(&source, dir, PUBLISHED[i], ".jinja");
        read_shared(&goldens, dir, PUBLISHED[i], ".goldens.jsonl");
        for (struct clime_str text = clime_buf_str(&goldens); next_line(&text, &line); n++) {
            read_golden(line, &a, &g);
            int k = 0;
            while (k < n_contexts && !clime_str_eq(known[k].id, g.context)) k++;
            assert_true(k < n_contexts);
            rc = render(clime_buf_str(&source), known[k].vars, &out, &e);
            if (!agrees(&g, rc, &out, &e)) n_bad++;
        }
    }
    clime_arena_free(&a);
    clime_buf_free(&contexts);
    clime_buf_free(&source);
    clime_buf_free(&goldens);
    clime_buf_free(&out);
    free(dir);
    assert_int_equal(n, 14 * 76);
    assert_int_equal(n_bad, 0);
}

/* ---- limits ---- */

static void test_limits(void **state) {
    (void)state;
    static const struct {
        const char *source, *what;
    } cases[] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"},
        {"{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% "
         "endfor %}",
         "memory"},
        {"{{ 'x' * 1000000000000 }}", "memory"},
        {"{{ [1] * 1000000000000 }}", "steps"},
        {"{{ 'x'.ljust(1000000000000) }}", "steps"},
        {"{{ '%1000000000d' % 1 }}", "width"},
        {"{% for i in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor "
         "%}",
         "longer than"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
         "recursion"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(200) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
         "ns.l|tojson }}",
         ""},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "recursion"},
        {"{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{{ 'zz' in s }}{% endfor %}", "steps"},
        {"{% set ns = namespace(g=[1]) %}{% for i in range(90000) %}{% set ns.g = ns.g|select %}{% endfor %}{{ "
         "ns.g|first }}",
         "recursion"},
        {"{{ range(100001) }}", "Range"},
        {"{{ 9223372036854775807 + 1 }}", "64 bits"},
        {"{{ 10 ** 100 }}", "64 bits"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf out;
        struct clime_error e = {0};
        clime_buf_init(&out, 1 << 20);
        enum clime_err rc = render(str(cases[i].source), str("{}"), &out, &e);
        if (rc != CLIME_ERR_LIMIT || !strstr(e.msg, cases[i].what))
            fail_msg("%s: %s (%s)", cases[i].source, clime_err_name(rc), rc ? e.msg : "");
        assert_int_equal(out.len, 0);
        clime_buf_free(&out);
    }
}

/* Nested and chained far beyond what a person writes: refused or rendered, never a crash. */
static void test_deep_source(void **state) {
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {
        {"{{ ", "(", ")"},      {"{{ 1", "+1", ""}, {"{{ ", "not ", ""},          {"{{ ", "-", ""},
        {"{{ x", "[0", "]"},    {"{{ x", ".a", ""}, {"{{ x", "|upper", ""},       {"{{ ", "[", "]"},
        {"{{ ", "{1:", "}"},    {"{{ x", "(", ")"}, {"{{ 1", " if 1 else 1", ""}, {"{{ x", " is defined", ""},
        {"{{ 1", " and 1", ""}, {"{{ 1", "~1", ""}, {"{{ 1", "<2", ""},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        for (int depth = 10; depth <= 20000; depth *= 12) {
            struct clime_buf source, out;
            struct clime_error e = {0};
            clime_buf_init(&source, 1 << 22);
            clime_buf_init(&out, 1 << 22);
            clime_buf_adds(&source, cases[i].open);
            for (int k = 0; k < depth; k++) clime_buf_adds(&source, cases[i].middle);
            clime_buf_adds(&source, "1");
            for (int k = 0; k < depth; k++) clime_buf_adds(&source, cases[i].close);
            clime_buf_adds(&source, " }}");
            render(clime_buf_str(&source), str("{\"x\":\"s\"}"), &out, &e);
            clime_buf_free(&source);
            clime_buf_free(&out);
        }
    }
    struct clime_buf source, out;
    struct clime_error e = {0};
    clime_buf_init(&source, 1 << 22);
    clime_buf_init(&out, 1 << 22);
    for (int k = 0; k < 5000; k++) clime_buf_adds(&source, "{% if true %}");
    assert_int_equal(render(clime_buf_str(&source), str("{}"), &out, &e), CLIME_ERR_LIMIT);
    clime_buf_free(&source);
    clime_buf_free(&out);
}

/* ---- input ---- */

static void test_input(void **state) {
    (void)state;
    static const struct {
        const char *source, *vars, *want; /* want NULL: an error */
    } cases[] = {
        {"{{ a }}{{ a is integer }}", "{\"a\":1}", "1True"},
        {"{{ a }}{{ a is float }}", "{\"a\":1.0}", "1.0True"},
        {"{{ a }}", "{\"a\":-0}", "0"},
        {"{{ a }}", "{\"a\":-0.0}", "-0.0"},
        {"{{ a }}|{{ a + 1 }}", "{\"a\":9007199254740993}", "9007199254740993|9007199254740994"},
        {"{{ a }}|{{ a|tojson }}", "{\"a\":18446744073709551616}", "18446744073709551616|18446744073709551616"},
        {"{{ a + 1 }}", "{\"a\":18446744073709551616}", NULL},
        {"{{ a }}", "{\"a\":1,\"b\":2,\"a\":3}", "3"},
        {"{{ d }}", "{\"d\":{\"z\":1,\"a\":2,\"z\":3}}", "{'z': 3, 'a': 2}"},
        {"{{ bos_token }}|{{ eos_token }}", "{\"eos_token\":\"E\"}", "|E"},
        {"{{ strftime_now('%d %b %Y') }}", "{}", "26 Jul 2025"},
        {"x", "[1]", NULL},
        {"x", "{", NULL},
        {"x", "{} x", NULL},
        {"x", "", NULL},
        {"\xff", "{}", NULL},
    };
    setenv("TZ", "UTC", 1);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf out;
        struct clime_error e = {0};
        clime_buf_init(&out, 1 << 20);
        enum clime_err rc = render(str(cases[i].source), str(cases[i].vars), &out, &e);
        if (!cases[i].want)
            assert_int_not_equal(rc, CLIME_OK);
        else if (rc)
            fail_msg("%s: %s", cases[i].source, e.msg);
        else
            assert_string_equal(out.data, cases[i].want);
        clime_buf_free(&out);
    }
}

static void test_several_objects_and_tokens(void **state) {
    (void)state;
    struct clime_str vars[] = {str("{\"a\":1,\"b\":1}"), str("{\"b\":2,\"eos_token\":\"<e>\"}")};
    struct clime_template_input in = {.vars = vars, .n_vars = 2, .bos_token = "<s>", .eos_token = "</s>"};
    struct clime_template *t;
    struct clime_buf out;
    struct clime_error e = {0};
    clime_buf_init(&out, 1000);
    clime_buf_adds(&out, "kept ");
    assert_int_equal(clime_template_compile(str("{{ bos_token }}{{ a }}{{ b }}{{ eos_token }}"), &t, &e), CLIME_OK);
    assert_int_equal(clime_template_render(t, &in, &out, NULL, &e), CLIME_OK);
    assert_string_equal(out.data, "kept <s>12<e>");
    vars[1] = str("3");
    assert_int_equal(clime_template_render(t, &in, &out, NULL, &e), CLIME_ERR_INPUT);
    assert_string_equal(out.data, "kept <s>12<e>");
    clime_template_free(t);
    clime_buf_free(&out);
}

/* Whatever the list of variables that tools come from; others stay as they are. */
static void test_sorted_tools(void **state) {
    (void)state;
    static const char *const TOOLS[] = {"null", "[]", "\"b a\"",
                                        "[{\"b\":[{\"d\":1,\"c\":2}],\"a\":0},{\"B\":3,\"\":4}]"};
    static const char *const WANT[] = {"None", "[]", "b a", "[{'a': 0, 'b': [{'c': 2, 'd': 1}]}, {'': 4, 'B': 3}]"};
    struct clime_template *t;
    struct clime_buf out, last;
    clime_buf_init(&out, 1000);
    clime_buf_init(&last, 1000);
    assert_int_equal(clime_template_compile(str("{{ other }}{{ tools }}"), &t, NULL), CLIME_OK);
    for (size_t i = 0; i < CLIME_COUNT(TOOLS); i++) {
        clime_buf_clear(&out);
        clime_buf_clear(&last);
        clime_buf_printf(&last, "{\"tools\":%s}", TOOLS[i]);
        struct clime_str vars[] = {str("{\"other\":{\"b\":1,\"a\":2},\"tools\":[1]}"), clime_buf_str(&last)};
        struct clime_template_input in = {.vars = vars, .n_vars = 2, .sort_tools = true};
        assert_int_equal(clime_template_render(t, &in, &out, NULL, NULL), CLIME_OK);
        assert_int_equal(strncmp(out.data, "{'b': 1, 'a': 2}", 16), 0);
        assert_string_equal(out.data + 16, WANT[i]);
    }
    clime_template_free(t);
    clime_buf_free(&last);
    clime_buf_free(&out);
}

static void test_error_lines(void **state) {
    (void)state;
    static const struct {
        const char *source, *want;
    } cases[] = {
        {"a\nb\n{{ none + 1 }}", "template line 3: "},
        {"{% if true %}\n\n{{ raise_exception('no ' ~ 'way') }}{% endif %}", "template line 3: no way"},
        {"\n\n{% endfor %}", "template line 3: "},
        {"{% macro m() %}\n{{ x.y }}\n{% endmacro %}\n{{ m() }}", "template line 2: 'x' is undefined"},
        {"{# a\nb #}\n{{ 1 | nosuch }}", "template line 3: No filter named 'nosuch'."},
        {"{{ d.x.y }}", "template line 1: 'dict object' has no attribute 'x'"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf out;
        struct clime_error e = {0};
        clime_buf_init(&out, 1 << 20);
        assert_int_equal(render(str(cases[i].source), str("{\"d\":{}}"), &out, &e), CLIME_ERR_INPUT);
        if (strncmp(e.msg, cases[i].want, strlen(cases[i].want))) fail_msg("%s: %s", cases[i].source, e.msg);
        clime_buf_free(&out);
    }
}

/* ---- spans ---- */

static void test_spans(void **state) {
    (void)state;
    static const char source[] =
        "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}"
        "<end>{% endgeneration %}\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}";
    struct clime_str vars = str("{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3\xA9\"},{\"role\":\"assistant\","
                                "\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"two\"}]}");
    struct clime_template_input in = {.vars = &vars, .n_vars = 1};
    struct clime_template *t;
    struct clime_buf out;
    struct clime_spans spans = {0};
    struct clime_error e = {0};
    clime_buf_init(&out, 1000);
    clime_buf_adds(&out, "before");
    assert_int_equal(clime_template_compile(str(source), &t, &e), CLIME_OK);
    assert_true(clime_template_has_generation(t));
    assert_int_equal(clime_template_render(t, &in, &out, &spans, &e), CLIME_OK);
    assert_int_equal(spans.n, 2);
    const char *text = out.data + strlen("before");
    assert_memory_equal(text + spans.data[0].begin, "one<end>", 8);
    assert_int_equal(spans.data[0].end - spans.data[0].begin, 8);
    assert_memory_equal(text + spans.data[1].begin, "two<end>", 8);
    clime_spans_free(&spans);
    clime_template_free(t);

    static const char nested[] = "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}";
    assert_int_equal(clime_template_compile(str(nested), &t, &e), CLIME_OK);
    assert_int_equal(clime_template_render(t, &in, &out, NULL, &e), CLIME_OK);
    assert_int_equal(clime_template_render(t, &in, &out, &spans, &e), CLIME_ERR_INPUT);
    assert_int_equal(spans.n, 0);
    clime_template_free(t);
    clime_buf_free(&out);
}

/* ---- threads ---- */

static void *render_often(void *arg) {
    const struct clime_template *t = arg;
    struct clime_str vars = str("{\"l\":[1,2,3]}");
    struct clime_template_input in = {.vars = &vars, .n_vars = 1};
    for (int i = 0; i < 200; i++) {
        struct clime_buf out;
        clime_buf_init(&out, 1000);
        if (clime_template_render(t, &in, &out, NULL, NULL) || strcmp(out.data, "1;2;3;[1, 2, 3]")) arg = NULL;
        clime_buf_free(&out);
    }
    return arg;
}

static void test_threads(void **state) {
    (void)state;
    struct clime_template *t;
    struct clime_error e = {0};
    pthread_t threads[4];
    void *result;
    assert_int_equal(clime_template_compile(str("{% macro m(x) %}{{ x }};{% endmacro %}{% for i in l %}{{ m(i) }}"
                                                "{% endfor %}{{ l }}"),
                                            &t, &e),
                     CLIME_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, t);
    }
    clime_template_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_cases), cmocka_unit_test(test_published_templates),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_input),        cmocka_unit_test(test_several_objects_and_tokens),
        cmocka_unit_test(test_sorted_tools), cmocka_unit_test(test_error_lines),
        cmocka_unit_test(test_spans),        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
