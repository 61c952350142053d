/* Fuzzer of the chat template engine: mutates the stored templates and their variables, compiles, renders.
 *
 *   fuzz_template [ROUNDS [SEED]]     (default 20000 rounds, seed 1; the same seed gives the same inputs)
 *
 * Run from the repository's root, best in a sanitizer build. Whatever the input, a rendering must end within its limits
 * with a text that is valid UTF-8 or an error that has a message; anything else ends the program (abort, or a
 * sanitizer's report). Prints how many inputs compiled and rendered.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/json/scan.h"
#include "common/rng.h"
#include "common/utf8.h"
#include "model/chat.h"
#include "model/template.h"

#define MAX_SEEDS 2000
#define MAX_INPUT 4096

static const char *const PIECES[] = {
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
};

struct input {
    char data[MAX_INPUT];
    size_t len;
};

/* Replaces n bytes at `at` by piece, cut at the size. */
static void splice(struct input *x, size_t at, size_t n, struct clime_str piece) {
    char rest[MAX_INPUT];
    size_t n_rest = x->len - at - n;
    memcpy(rest, x->data + at + n, n_rest);
    x->len = at;
    size_t room = MAX_INPUT - x->len;
    size_t take = piece.len < room ? piece.len : room;
    memcpy(x->data + x->len, piece.ptr, take);
    x->len += take;
    room = MAX_INPUT - x->len;
    take = n_rest < room ? n_rest : room;
    memcpy(x->data + x->len, rest, take);
    x->len += take;
}

static void mutate(struct clime_rng *r, struct input *x, const struct clime_str *seeds, size_t n_seeds) {
    size_t at = clime_rng_below(r, x->len + 1), rest = x->len - at;
    size_t n = clime_rng_below(r, (rest < 12 ? rest : 12) + 1);
    char byte = (char)clime_rng_u32(r);
    struct clime_str seed = seeds[clime_rng_below(r, n_seeds)];
    size_t from = clime_rng_below(r, seed.len + 1);
    switch (clime_rng_below(r, 6)) {
    case 0:
        splice(x, at, n, (struct clime_str){"", 0});
        break;
    case 1:
        splice(x, at, 0, (struct clime_str){&byte, 1});
        break;
    case 2:
        splice(x, at, n, (struct clime_str){seed.ptr + from, seed.len - from});
        break;
    default:
        splice(x, at, n / 4, clime_str_of(PIECES[clime_rng_below(r, CLIME_COUNT(PIECES))]));
        break;
    }
}

static void check_text(struct clime_str s) {
    uint32_t cp;
    for (size_t at = 0; at < s.len;) {
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

struct tally {
    long compiled, rendered, limited;
};

static void run_one(struct clime_str source, struct clime_str vars, struct tally *tally) {
    struct clime_template *t = NULL;
    struct clime_error e = {0};
    struct clime_buf out;
    struct clime_spans spans = {0};
    enum clime_err rc = clime_template_compile(source, &t, &e);
    if (rc) {
        CHECK(e.msg[0]);
        return;
    }
    tally->compiled++;
    clime_buf_init(&out, 1 << 20);
    struct clime_template_input in = {
        .vars = &vars, .n_vars = 1, .limits = {.max_steps = 200000, .max_memory = 8 << 20, .max_depth = 500}};
    rc = clime_template_render(t, &in, &out, clime_template_has_generation(t) ? &spans : NULL, &e);
    if (rc) {
        CHECK(e.msg[0] && out.len == 0 && spans.n == 0);
        check_text(clime_str_of(e.msg));
        tally->limited += rc == CLIME_ERR_LIMIT;
    } else {
        check_text(clime_buf_str(&out));
        tally->rendered++;
    }
    clime_spans_free(&spans);
    clime_buf_free(&out);
    clime_template_free(t);
}

/* The templates of tests/golden/template_cases.jsonl; its variables into *vars. Slices of file and arena. */
static size_t read_seeds(struct clime_buf *file, struct clime_arena *a, struct clime_str *seeds,
                         struct clime_str *vars) {
    struct clime_error e = {0};
    struct clime_str key;
    size_t n = 0;
    if (clime_buf_read_file(file, "tests/golden/template_cases.jsonl", &e)) {
        fprintf(stderr, "%s\n", e.msg);
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
                clime_json_skip(&j, clime_str_is(key, "vars") ? vars : NULL);
        }
        CHECK(clime_json_end(&j));
        at = nl ? nl + 1 : end;
    }
    return n;
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
    static struct clime_str seeds[MAX_SEEDS];
    struct clime_str vars = {NULL, 0};
    struct clime_buf file, messages;
    struct clime_arena a;
    struct clime_rng r;
    struct tally tally = {0};
    clime_rng_init(&r, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    clime_buf_init(&file, 1 << 24);
    clime_buf_init(&messages, 1 << 20);
    clime_arena_init(&a, 1 << 24);
    size_t n_seeds = read_seeds(&file, &a, seeds, &vars);
    CHECK(n_seeds && vars.ptr);
    for (long i = 0; i < rounds; i++) {
        struct input x = {.len = 0}, v = {.len = 0};
        splice(&x, 0, 0, seeds[clime_rng_below(&r, n_seeds)]);
        for (uint64_t k = clime_rng_below(&r, 5) + 1; k > 0; k--) mutate(&r, &x, seeds, n_seeds);
        splice(&v, 0, 0, vars);
        if (i % 4 == 0) mutate(&r, &v, seeds, n_seeds);
        run_one((struct clime_str){x.data, x.len}, (struct clime_str){v.data, v.len}, &tally);
        /* The same bytes as messages: mostly refused, never read past their end. */
        const char *list = memchr(v.data, '[', v.len);
        clime_buf_clear(&messages);
        if (list)
            clime_chat_messages((struct clime_str){list, (size_t)(v.data + v.len - list)}, i & 1, &messages, NULL);
    }
    clime_arena_free(&a);
    clime_buf_free(&file);
    clime_buf_free(&messages);
    printf("fuzz_template: %ld rounds, %ld compiled, %ld rendered, %ld stopped by a limit\n", rounds, tally.compiled,
           tally.rendered, tally.limited);
    return 0;
}
