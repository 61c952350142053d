/* Fuzzes the chat template engine: compiles and renders, and prepares messages.
 *
 * A case is a template, and after the byte 0x1e the variables as JSON (none: those of the stored cases). Seeds are the
 * stored cases of tests/golden, so it runs from the repository's root.
 * Invariants: every rendering ends within its limits, with a text that is valid UTF-8 and spans inside it, or with an
 * error that has a message, and then with nothing in the output.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/json/scan.h"
#include "common/utf8.h"
#include "text/chat/prepare.h"
#include "text/template/template.h"

#define MAX_SEEDS 2000
#define SEPARATOR 0x1e

static struct clime_str stored_vars;

static void check_text(struct clime_str s) {
    uint32_t cp;
    for (size_t at = 0; at < s.len;) {
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

static void render(struct clime_str source, struct clime_str vars) {
    struct clime_template *t = NULL;
    struct clime_error e = {0};
    struct clime_buf out;
    struct clime_spans spans = {0};
    if (clime_template_compile(source, &t, &e)) {
        CHECK(e.msg[0]);
        check_text(clime_str_of(e.msg));
        return;
    }
    clime_buf_init(&out, 1 << 20);
    struct clime_template_input in = {.vars = &vars,
                                      .n_vars = 1,
                                      .sort_tools = source.len & 1,
                                      .limits = {.max_steps = 200000, .max_memory = 8 << 20, .max_depth = 500}};
    if (clime_template_render(t, &in, &out, clime_template_has_generation(t) ? &spans : NULL, &e)) {
        CHECK(e.msg[0] && out.len == 0 && spans.n == 0);
        check_text(clime_str_of(e.msg));
    } else {
        check_text(clime_buf_str(&out));
        for (size_t i = 0; i < spans.n; i++)
            CHECK(spans.data[i].begin <= spans.data[i].end && spans.data[i].end <= out.len);
    }
    clime_spans_free(&spans);
    clime_buf_free(&out);
    clime_template_free(t);
}

static void target(const char *data, size_t len) {
    const char *mark = len ? memchr(data, SEPARATOR, len) : NULL;
    struct clime_str source = {data, mark ? (size_t)(mark - data) : len}, vars = stored_vars;
    if (mark) vars = (struct clime_str){mark + 1, len - source.len - 1};
    render(source, vars);

    /* The variables' list of messages, as a client would send it. */
    const char *list = mark ? memchr(vars.ptr, '[', vars.len) : NULL;
    struct clime_buf out;
    struct clime_error e = {0};
    clime_buf_init(&out, 1 << 20);
    struct clime_str messages = {list, list ? (size_t)(vars.ptr + vars.len - list) : 0};
    const struct clime_chat_form form = {.source = (char *)(uintptr_t) "'user' 'assistant'",
                                         .shows = len & 1023,
                                         .thought = clime_chat_thoughts[len % 3]};
    if (list && clime_chat_prepare(&form, messages, &out, NULL, &e))
        CHECK(e.msg[0]);
    else
        check_text(clime_buf_str(&out));
    clime_buf_free(&out);
}

/* The templates of the stored cases, and their variables. Slices of file and arena. */
static int read_seeds(struct clime_buf *file, struct clime_arena *a, struct clime_str *seeds) {
    struct clime_error e = {0};
    struct clime_str key;
    int n = 0;
    if (clime_buf_read_file(file, "tests/golden/template_cases.jsonl", &e)) {
        fprintf(stderr, "fuzz_template: %s\n", e.msg);
        exit(1);
    }
    for (const char *at = file->data, *end = at + file->len; at < end && n < MAX_SEEDS;) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        struct clime_json j;
        clime_json_init(&j, at, (size_t)((nl ? nl : end) - at), a, &e);
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "template"))
                clime_json_string(&j, &seeds[n++]);
            else
                clime_json_skip(&j, clime_str_is(key, "vars") ? &stored_vars : NULL);
        }
        CHECK(clime_json_end(&j));
        at = nl ? nl + 1 : end;
    }
    return n;
}

static const char *const words[] = {
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    " -%}",
    "{# ",
    " #}",
    "{% for x in ",
    "{% endfor %}",
    "{% if ",
    "{% else %}",
    "{% endif %}",
    "{% macro m(a, b=1) %}",
    "{% endmacro %}",
    "{% set x = ",
    "{% set x %}",
    "{% endset %}",
    "{% call m() %}",
    "{% endcall %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% break %}",
    "{% continue %}",
    "{% raw %}",
    "{% endraw %}",
    " recursive",
    "loop(",
    "loop.last",
    "caller()",
    "kwargs",
    "varargs",
    "m(1, *l, **d)",
    "|map(",
    "|selectattr('role', ",
    "|tojson(indent=",
    "|join(",
    "|sort(attribute=",
    "|groupby('age')",
    "|unique",
    "|list",
    "|first",
    "|last",
    "|reverse",
    "|batch(2)",
    "|slice(3)",
    "|indent(",
    "|int",
    "|round(",
    "|default(",
    "|safe",
    "|escape",
    "|format(",
    "|truncate(3)",
    "|items",
    "[::-1]",
    "[1:",
    "[-1]",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ".items()",
    ".split(",
    ".format(",
    ".replace(",
    ".strip()",
    "'%s %5.2f'%",
    "'{:>9} {x[0]}'",
    "namespace(x=1)",
    "range(",
    "dict(",
    "cycler(1, 2)",
    "joiner()",
    "none",
    "true",
    "undefined_name",
    "messages",
    "users",
    "s",
    "u",
    "l",
    "d",
    "n",
    "big",
    "f",
    " is ",
    " not ",
    " in ",
    " and ",
    " or ",
    " if ",
    " else ",
    "~",
    "+",
    "-",
    "*",
    "**",
    "//",
    "%",
    "/",
    "==",
    "<",
    ",",
    ":",
    "=",
    ".",
    "0",
    "-1",
    "9223372036854775807",
    "1e308",
    "'",
    "\"",
    "\\",
    "\\u0041",
    "\xC3\xA9",
    "\xF0\x9F\x98\x80",
    "\n",
    " ",
    "\x1e{}",
    "\x1e{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],\"tool_calls\":"
    "[{\"function\":{\"arguments\":\"{}\"}}]}],\"n\":1.0,\"l\":[3,1,2]}",
    NULL,
};

int main(int argc, char **argv) {
    static struct clime_str seeds[MAX_SEEDS];
    struct clime_buf file;
    struct clime_arena a;
    clime_buf_init(&file, 1 << 24);
    clime_arena_init(&a, 1 << 24);
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = read_seeds(&file, &a, seeds),
                           .words = words,
                           .max_bytes = 4096,
                           .iterations = 50000,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    clime_arena_free(&a);
    clime_buf_free(&file);
    return status;
}
