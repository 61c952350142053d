/* Waits: what is told of them, in which order, and that any of them may end first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/os/waits.h"

/* "count name: blocker" of each line. */
static const char *told(void) {
    static char out[4096];
    struct clime_buf text;
    size_t n = 0;
    out[0] = 0;
    clime_buf_init(&text, 1 << 16);
    clime_waits_write(&text);
    for (char *line = text.data, *end; text.len && *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        *end = 0;
        char *name, *on = strstr(line, ": ");
        long count = strtol(line, &name, 10);
        assert_non_null(on);
        name += strspn(name, " ");
        int length = (int)strcspn(name, "0123456789");
        while (length > 0 && name[length - 1] == ' ') length--;
        n += (size_t)snprintf(out + n, sizeof out - n, "%ld %.*s: %s\n", count, length, name, on + 2);
    }
    clime_buf_free(&text);
    return out;
}

static void waits_of_a_name_are_told_together(void **state) {
    (void)state;
    struct clime_wait a = {0}, b = {0}, c = {0};
    assert_string_equal(told(), "");
    clime_wait_begin(&a, "an answer", 5000000, "one");
    clime_wait_begin(&b, "a disk", 0, "sda");
    clime_wait_begin(&c, "an answer", 5000000, "two");
    assert_string_equal(told(), "2 an answer: one\n1 a disk: sda\n");
    clime_wait_on(&b, "sd%c", 'b');
    clime_wait_end(&a); /* then the next of the name is the oldest */
    assert_string_equal(told(), "1 a disk: sdb\n1 an answer: two\n");
    clime_wait_begin(&b, "a disk", 0, "again"); /* anew: it is the youngest now */
    assert_string_equal(told(), "1 an answer: two\n1 a disk: again\n");
    clime_wait_end(&c);
    clime_wait_end(&c);
    clime_wait_end(&b);
    assert_string_equal(told(), "");
}

/* Against a naive model: which of 32 are begun. */
static void any_order(void **state) {
    (void)state;
    static struct clime_wait w[32];
    static char names[32][8];
    bool begun[32] = {false};
    srand(1);
    for (int i = 0; i < 32; i++) snprintf(names[i], sizeof names[i], "%c%c", 'a' + i / 8, 'a' + i % 8);
    for (int step = 0; step < 5000; step++) {
        int i = rand() % 32, n = 0, lines = 0;
        begun[i] = rand() % 2;
        if (begun[i])
            clime_wait_begin(&w[i], names[i], 0, "x");
        else
            clime_wait_end(&w[i]);
        for (int k = 0; k < 32; k++) n += begun[k];
        for (const char *at = told(); *at; at = strchr(at, '\n') + 1) lines++;
        assert_int_equal(lines, n);
    }
    for (int i = 0; i < 32; i++) clime_wait_end(&w[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_of_a_name_are_told_together),
        cmocka_unit_test(any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
