/* Fuzzes the JSON scanner, the writer and the tree against each other.
 *
 * Invariants: skipping and reading accept the same texts; what was read and written again reads back to the same text;
 * the tree accepts what the scanner accepts, but for "\u0000".
 */
#include "fuzz.h"

#include "common/buf.h"
#include "common/json/scan.h"
#include "common/json/tree.h"
#include "common/json/walk.h"
#include "common/json/write.h"

/* Reads any value and writes it; false when it is wrong, and then the writer's text is worth nothing. */
static bool copy(struct clime_json *j, struct clime_jw *w) {
    struct clime_str s;
    double d;
    bool b;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_ERROR:
        return false;
    case CLIME_JSON_NULL:
        if (!clime_json_null(j)) return false;
        clime_jw_null(w);
        return true;
    case CLIME_JSON_BOOL:
        if (!clime_json_bool(j, &b)) return false;
        clime_jw_bool(w, b);
        return true;
    case CLIME_JSON_NUMBER:
        if (!clime_json_double(j, &d)) return false;
        clime_jw_double(w, d);
        return true;
    case CLIME_JSON_STRING:
        if (!clime_json_string(j, &s)) return false;
        clime_jw_str(w, s);
        return true;
    case CLIME_JSON_ARRAY:
        if (!clime_json_array(j)) return false;
        clime_jw_array(w);
        while (clime_json_item(j))
            if (!copy(j, w)) return false;
        break;
    case CLIME_JSON_OBJECT:
        if (!clime_json_object(j)) return false;
        clime_jw_object(w);
        while (clime_json_key(j, &s)) {
            clime_jw_key_str(w, s);
            if (!copy(j, w)) return false;
        }
        break;
    }
    if (j->failed) return false;
    clime_jw_close(w);
    return true;
}

/* Whether the text was read; its copy is in out. */
static bool read_and_write(const char *data, size_t len, struct clime_buf *out) {
    struct clime_arena a;
    struct clime_error e = {0};
    struct clime_json j;
    struct clime_jw w;
    clime_arena_init(&a, 1 << 20);
    clime_json_init(&j, data, len, &a, &e);
    clime_jw_init(&w, out);
    bool copied = copy(&j, &w), ok = clime_json_end(&j);
    CHECK(ok == (e.code == CLIME_OK) && (copied || !ok));
    clime_arena_free(&a);
    return ok;
}

static bool skips(const char *data, size_t len) {
    struct clime_arena a;
    struct clime_error e = {0};
    struct clime_json j;
    struct clime_str raw;
    clime_arena_init(&a, 1 << 20);
    clime_json_init(&j, data, len, &a, &e);
    bool ok = clime_json_skip(&j, &raw);
    CHECK(!ok || (raw.ptr >= data && raw.ptr + raw.len <= data + len));
    CHECK(a.used == 0);
    ok = clime_json_end(&j);
    e = (struct clime_error){0};
    CHECK(ok == clime_json_check(data, len, &e));
    return ok;
}

/* Byte by byte: a container that the scanner accepts is complete at its last byte and not before; one that is refused
 * there is refused here, but for what only the scanner looks at (UTF-8, surrogates, numbers that no double holds).
 */
static void walk(const char *data, size_t len, bool ok) {
    struct clime_json_walk w = {0};
    size_t at = 0, end = len;
    while (at < len && strchr(" \n\t\r", data[at]) && data[at]) at++;
    while (end > at && strchr(" \n\t\r", data[end - 1]) && data[end - 1]) end--;
    if (at == end || (data[at] != '{' && data[at] != '[')) return;
    enum clime_json_walked walked = CLIME_WALK_MORE;
    while (at < end && walked == CLIME_WALK_MORE) walked = clime_json_walk(&w, data[at++]);
    bool whole = walked == CLIME_WALK_DONE && at == end, odd = len > 300 || memmem(data, len, "\\u", 2);
    for (size_t i = 0; i < len; i++) odd |= (unsigned char)data[i] >= 0x80 || data[i] == 'e' || data[i] == 'E';
    CHECK(!ok || whole);
    CHECK(!whole || ok || odd);
}

static void target(const char *data, size_t len) {
    struct clime_buf once, twice;
    clime_buf_init(&once, 1 << 20);
    clime_buf_init(&twice, 1 << 20);
    bool ok = read_and_write(data, len, &once);
    CHECK(ok == skips(data, len));
    walk(data, len, ok);
    if (ok) {
        CHECK(read_and_write(once.data, once.len, &twice));
        CHECK(clime_str_eq(clime_buf_str(&once), clime_buf_str(&twice)));
    }
    struct cJSON *root;
    struct clime_error e = {0};
    enum clime_err rc = clime_tree_parse(data, len, &root, &e);
    CHECK(rc == CLIME_OK ? ok : rc == CLIME_ERR_INPUT);
    clime_tree_free(root);
    clime_buf_free(&once);
    clime_buf_free(&twice);
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const struct clime_str seeds[] = {
    SEED("{\"a\":[1,-2.5e+3,\"\\u00e9\\ud83d\\ude00\xe2\x82\xac\"],\"b\":{\"c\":[true,null,false]}}"),
    SEED("{\"input_ids\":[1,2,3],\"sampling_params\":{\"temperature\":0.7,\"stop\":[\"\\n\"],\"seed\":"
         "18446744073709551615}}"),
    SEED("[[[[[[[[{}]]]]]]]]"),
    SEED("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\""),
    SEED("[0.1,1e308,4.9e-324,123456789012345678901234567890,-0]"),
};
static const char *const words[] = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "\"",
                                    "\\u",
                                    "\\ud800",
                                    "null",
                                    "true",
                                    "false",
                                    "1e",
                                    "1e400",
                                    "-",
                                    "0.",
                                    "\xed\xa0\x80",
                                    "\xf4\x90\x80\x80",
                                    "\xff",
                                    "\r\n",
                                    "\n\n",
                                    "[[[[[[[[[[[[[[[[",
                                    "99999999999999999999",
                                    NULL};

int main(int argc, char **argv) {
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = sizeof seeds / sizeof seeds[0],
                           .words = words,
                           .max_bytes = 4096,
                           .iterations = 100000,
                           .target = target};
    return fuzz_main(argc, argv, &f);
}
