/* The sockets that were accepted and not claimed yet: found by the peer's address, never mistaken for another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http/accepted.h"

static int listener, port;

static int port_of(int fd) {
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    return ntohs(a.sin_port);
}

static int setup(void **state) {
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 16)) return -1;
    port = port_of(listener);
    clime_accepted_note_mine();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return close(listener);
}

/* A client's socket from a port of its own (0: any), and what accept(2) gives for it. */
static int dial(int from, int *accepted) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(from)};
    int c = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(c, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(c, (struct sockaddr *)&a, sizeof a), 0);
    a.sin_port = htons(port);
    assert_int_equal(connect(c, (struct sockaddr *)&a, sizeof a), 0);
    *accepted = accept(listener, NULL, NULL);
    assert_true(*accepted >= 0);
    return c;
}

struct seen {
    int n, fd;
    uint64_t id;
};

static void see(void *arg, const struct clime_accepted *a) {
    struct seen *s = arg;
    *s = (struct seen){s->n + 1, a->fd, a->id};
}

static struct seen unclaimed(void) {
    struct seen s = {0};
    clime_accepted_each(port, see, &s);
    return s;
}

static void *dial_once(void *accepted) {
    int *both = accepted;
    both[0] = dial(0, &both[1]);
    return NULL;
}

/* NCCL's threads accept too, and nobody claims their sockets: they are not noted. */
static void test_other_threads(void **state) {
    (void)state;
    int both[2];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, dial_once, both), 0);
    pthread_join(thread, NULL);
    assert_int_equal(unclaimed().n, 0);
    assert_int_equal(fcntl(both[1], F_GETFD) & FD_CLOEXEC, 0); /* as accept(2) gives it */
    close(both[0]);
    close(both[1]);
}

/* By address, own port and peer's port; once. */
static void test_claim(void **state) {
    (void)state;
    int a[3], c[3];
    bool ended;
    for (int i = 0; i < 3; i++) c[i] = dial(0, &a[i]);
    assert_int_equal(unclaimed().n, 3);
    assert_int_equal(clime_accepted_claim("127.0.0.1", port_of(c[1]), port + 1, &ended), -1);
    assert_int_equal(clime_accepted_claim("127.0.0.2", port_of(c[1]), port, &ended), -1);
    assert_int_equal(clime_accepted_claim("127.0.0.1", port, port, &ended), -1);
    for (int i = 1; i < 4; i++)
        assert_int_equal(clime_accepted_claim("127.0.0.1", port_of(c[i % 3]), port, &ended), a[i % 3]);
    assert_int_equal(clime_accepted_claim("127.0.0.1", port_of(c[0]), port, &ended), -1);
    assert_int_equal(unclaimed().n, 0);
    for (int i = 0; i < 3; i++) close(a[i]), close(c[i]);
}

/* Closed without a request, and its number taken by something else: neither listed nor claimed nor ended. */
static void test_a_number_that_is_anothers(void **state) {
    (void)state;
    int old, fresh, pair[2], c = dial(0, &old), from = port_of(c);
    bool ended;
    struct seen before = unclaimed();
    assert_int_equal(before.fd, old);
    close(c);
    close(old);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0); /* takes the lowest free numbers */
    assert_true(pair[0] == old || pair[1] == old);
    clime_accepted_end(before.id);
    assert_int_equal(write(pair[0], "x", 1), 1); /* would be EPIPE */
    assert_int_equal(write(pair[1], "x", 1), 1);
    assert_int_equal(unclaimed().n, 0);
    c = dial(from, &fresh); /* the same client's port once more */
    assert_int_not_equal(fresh, old);
    assert_int_equal(clime_accepted_claim("127.0.0.1", from, port, &ended), fresh);
    close(pair[0]), close(pair[1]), close(c), close(fresh);
}

/* Ending is a read of nothing for whoever serves it; what has been claimed is not ended. */
static void test_end(void **state) {
    (void)state;
    int a[2], c[2];
    char byte;
    bool ended;
    for (int i = 0; i < 2; i++) {
        c[i] = dial(0, &a[i]);
        struct seen s = unclaimed();
        assert_int_equal(s.fd, a[i]);
        if (i == 1) assert_int_equal(clime_accepted_claim("127.0.0.1", port_of(c[i]), port, &ended), a[i]);
        if (i == 1) assert_false(ended);
        clime_accepted_end(s.id);
        assert_int_equal(recv(a[i], &byte, 1, MSG_DONTWAIT), i == 0 ? 0 : -1);
        assert_int_equal(unclaimed().n, 0); /* an ended one is not ended again */
    }
    assert_int_equal(clime_accepted_claim("127.0.0.1", port_of(c[0]), port, &ended),
                     a[0]); /* its request was on the way */
    assert_true(ended);
    for (int i = 0; i < 2; i++) close(a[i]), close(c[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_threads),
        cmocka_unit_test(test_claim),
        cmocka_unit_test(test_a_number_that_is_anothers),
        cmocka_unit_test(test_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
