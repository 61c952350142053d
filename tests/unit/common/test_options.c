/* Command-line options: values, defaults, ranges, errors that help, and the two descriptions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/options/options.h"

static bool verbose, cache, port_given;
static int64_t port, memory;
static double rate;
static const char *model;
static const char *key;
static int policy;
static struct clime_opt_list urls;

static const struct clime_opt table[] = {
    {.name = "General", .type = CLIME_OPT_SECTION},
    {.name = "port",
     .type = CLIME_OPT_INT,
     .value = &port,
     .def = "30_000",
     .min = 0,
     .max = 65535,
     .given = &port_given,
     .help = "port to listen on"},
    {.name = "memory", .type = CLIME_OPT_BYTES, .value = &memory, .def = "2g", .min = 1, .max = 0, .help = "for KV"},
    {.name = "lr",
     .type = CLIME_OPT_DOUBLE,
     .value = &rate,
     .def = "1e-6",
     .min = 0,
     .max = 1,
     .help = "learning rate"},
    {.name = "model-path",
     .type = CLIME_OPT_STRING,
     .value = &model,
     .choices = "DIR",
     .alias = "model",
     .help = "a Hugging Face folder"},
    {.name = "Routing", .type = CLIME_OPT_SECTION},
    {.name = "policy",
     .type = CLIME_OPT_CHOICE,
     .value = &policy,
     .def = "cache",
     .choices = "random|cache|least",
     .help = "how a worker is chosen"},
    {.name = "worker-urls", .type = CLIME_OPT_LIST, .value = &urls, .choices = "URL", .help = "the workers"},
    {.name = "verbose", .type = CLIME_OPT_BOOL, .value = &verbose, .help = "say more"},
    {.name = "api-key", .type = CLIME_OPT_KEY, .value = &key, .choices = "CLIME_TEST_KEY", .help = "asked"},
    {.name = "cache", .type = CLIME_OPT_BOOL, .value = &cache, .def = "true", .help = "prefix cache"},
};
enum { N = sizeof table / sizeof table[0] };

static const char *positional[2];
static struct clime_error e;

/* Splits a line at spaces and parses it. The words live in a buffer that stays until the next call. */
static enum clime_err parse(const char *line) {
    static char words[512];
    static char program[] = "program";
    char *argv[32] = {program};
    int argc = 1;
    size_t n = strlen(line);
    memcpy(words, line, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (words[i] == ' ')
            words[i] = 0;
        else if (i == 0 || words[i - 1] == 0)
            argv[argc++] = words + i;
    }
    free(urls.items);
    return clime_options_parse(table, N, argc, argv, positional, 2, "usage: program", &e);
}

static void test_values(void **state) {
    (void)state;
    assert_int_equal(parse(""), CLIME_OK);
    assert_int_equal(port, 30000);
    assert_false(port_given);
    assert_true(memory == 2ll << 30);
    assert_true(rate == 1e-6);
    assert_null(model);
    assert_int_equal(policy, 1);
    assert_int_equal(urls.n, 0);
    assert_true(cache && !verbose);
    assert_null(positional[0]);

    assert_int_equal(parse("one --port=8080 --memory 512m --lr 0.5 --model=/m --policy least --worker-urls a b "
                           "--verbose two --no-cache --worker-urls=c"),
                     CLIME_OK);
    assert_string_equal(positional[0], "one");
    assert_string_equal(positional[1], "two");
    assert_int_equal(port, 8080);
    assert_true(port_given);
    assert_int_equal(memory, 512 << 20);
    assert_true(rate == 0.5);
    assert_string_equal(model, "/m");
    assert_int_equal(policy, 2);
    assert_int_equal(urls.n, 3);
    assert_string_equal(urls.items[1], "b");
    assert_string_equal(urls.items[2], "c");
    assert_true(verbose && !cache);

    assert_int_equal(parse("--port 1 --port 2 --verbose=false --model-path -x -- --port"), CLIME_OK);
    assert_int_equal(port, 2);
    assert_false(verbose);
    assert_string_equal(model, "-x");
    assert_string_equal(positional[0], "--port");
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--prot 1", "unknown option --prot, did you mean --port (see --help)"},
        {"--worker-url=a", "unknown option --worker-url, did you mean --worker-urls (see --help)"},
        {"--modle x", "unknown option --modle, did you mean --model (see --help)"},
        {"--no-port", "unknown option --no-port, did you mean --port (see --help)"},
        {"--nosuch", "unknown option --nosuch (see --help)"},
        {"--x", "unknown option --x (see --help)"},
        {"--port", "--port needs a value"},
        {"--port --verbose", "--port needs a value"},
        {"--worker-urls --verbose", "--worker-urls needs a value"},
        {"--port x", "--port: 'x' is not an integer"},
        {"--port=", "--port: '' is not an integer"},
        {"--port 1.5", "--port: '1.5' is not an integer"},
        {"--port 1k", "--port: '1k' is not an integer"},
        {"--port 1__0", "--port: '1__0' is not an integer"},
        {"--port 99999999999999999999", "--port: '99999999999999999999' is not an integer"},
        {"--port 65536", "--port: 65536 is not between 0 and 65535"},
        {"--port -1", "--port: -1 is not between 0 and 65535"},
        {"--memory 0", "--memory: 0 is less than 1"},
        {"--memory 2x", "--memory: '2x' is not a size such as 512m"},
        {"--memory 9000000000000t", "--memory: '9000000000000t' is not a size such as 512m"},
        {"--lr nan", "--lr: 'nan' is not a number"},
        {"--lr 1e-3x", "--lr: '1e-3x' is not a number"},
        {"--lr 2", "--lr: 2 is not between 0 and 1"},
        {"--policy best", "--policy: 'best' is none of random|cache|least"},
        {"--policy cach", "--policy: 'cach' is none of random|cache|least"},
        {"--verbose=maybe", "--verbose: 'maybe' is not true or false"},
        {"--no-cache=1", "--no-cache takes no value"},
        {"a b c", "unexpected argument 'c' (see --help)"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        assert_int_equal(parse(cases[i].line), CLIME_ERR_INPUT);
        assert_string_equal(e.msg, cases[i].message);
    }
    char line[200] = "--";
    memset(line + 2, 'x', sizeof line - 3); /* a name longer than any */
    assert_int_equal(parse(line), CLIME_ERR_INPUT);
}

static void test_keys(void **state) {
    (void)state;
    char path[] = "/tmp/clime-key-XXXXXX", equals[64], apart[64];
    int fd = mkstemp(path);
    assert_int_equal(write(fd, " from a file\n", 13), 13);
    snprintf(equals, sizeof equals, "--api-key-file=%s", path);
    snprintf(apart, sizeof apart, "--api-key-file %s", path);
    unsetenv("CLIME_TEST_KEY");
    assert_int_equal(parse(""), CLIME_OK);
    assert_null(key);
    setenv("CLIME_TEST_KEY", "from outside", 1);
    assert_int_equal(parse(""), CLIME_OK);
    assert_string_equal(key, "from outside");
    assert_int_equal(parse(apart), CLIME_OK);
    assert_string_equal(key, "from a file");
    assert_int_equal(parse(equals), CLIME_OK);
    assert_string_equal(key, "from a file");
    assert_int_equal(parse("--api-key said"), CLIME_OK);
    assert_string_equal(key, "said");
    assert_int_equal(write(fd, "two\n", 4), 4); /* lines */
    assert_int_equal(parse(apart), CLIME_ERR_INPUT);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(parse(apart), CLIME_ERR_INPUT);
    close(fd);
    unlink(path);
    assert_int_equal(parse(apart), CLIME_ERR_NOT_FOUND);
    unsetenv("CLIME_TEST_KEY");
}

static void test_describe(void **state) {
    (void)state;
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    clime_options_describe(table, N, 0, &b);
    assert_non_null(strstr(b.data, "General\n  --port N                        port to listen on (default: 30_000)\n"));
    assert_non_null(strstr(b.data, "\nRouting\n  --policy random|cache|least     how a worker is chosen (default: "));
    assert_non_null(strstr(b.data, "--worker-urls URL ..."));
    assert_non_null(strstr(b.data, "prefix cache (default: on)"));
    assert_non_null(strstr(b.data, "(also --model)"));
    assert_non_null(strstr(b.data, "--api-key KEY"));
    assert_non_null(strstr(b.data, "asked (or --api-key-file FILE, or $CLIME_TEST_KEY)"));
    clime_buf_clear(&b);
    clime_options_describe(table, N, 1, &b);
    assert_non_null(strstr(b.data, "**Routing**\n\n| option | default | meaning |\n| --- | --- | --- |\n"));
    assert_non_null(strstr(b.data, "| `--policy random\\|cache\\|least` | cache | how a worker is chosen |\n"));
    assert_non_null(strstr(b.data, " (also `--model`) |\n"));
    clime_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_describe),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(urls.items);
    return failed;
}
