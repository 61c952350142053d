/* A group meets, talks, and notices who is missing, lost, frozen or another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dlfcn.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include <cmocka.h>

#include "common/group/start.h"
#include "tests/unit/addresses.h"
#include "tests/unit/ranks.h"

static struct clime_group *meet(const struct clime_place *p, int64_t limit_us) {
    const struct clime_group_options o = ranks_options(p, limit_us);
    struct clime_group *g;
    struct clime_error e;
    if (clime_group_meet(&o, &g, &e)) {
        fprintf(stderr, "rank %d: %s\n", p->rank, e.msg);
        return NULL;
    }
    return g;
}

/* Says every message back, twice as long, until an empty one comes. */
static int echo(const struct clime_place *p, void *arg) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_buf b;
    struct clime_error e;
    (void)arg;
    clime_buf_init(&b, 1 << 24);
    if (!g || clime_group_agree(g, "alike", &e)) return 1;
    for (;;) {
        if (clime_group_receive(g, 0, "a word", -1, &b, &e)) return 2;
        if (!b.len) break;
        size_t n = b.len;
        char *again = clime_buf_reserve(&b, n);
        memcpy(again, again - n, n);
        clime_buf_grew(&b, n);
        if (clime_group_send(g, 0, b.data, b.len, &e)) return 3;
    }
    clime_buf_free(&b);
    clime_group_close(g);
    return 0;
}

static void test_messages(void **state) {
    struct ranks r;
    struct clime_error e;
    struct clime_buf b;
    enum { LONG = 5000000 };
    (void)state;
    ranks_fork(&r, 3, echo, NULL);
    struct clime_group *g = meet(&r.place, RANKS_LONG_US);
    assert_non_null(g);
    assert_int_equal(clime_group_world(g), 3);
    assert_true(clime_group_one_host(g));
    assert_int_equal(clime_group_agree(g, "alike", &e), CLIME_OK);
    char *text = xmalloc(LONG);
    clime_buf_init(&b, 2 * LONG);
    memset(text, 'x', LONG);
    for (int i = 1; i < 3; i++) assert_int_equal(clime_group_send(g, i, text, i == 1 ? 3 : LONG, &e), CLIME_OK);
    for (int i = 2; i >= 1; i--) { /* the other's answer waits meanwhile and ends nothing */
        if (clime_group_receive(g, i, "an answer", RANKS_LONG_US, &b, &e)) fail_msg("%s", e.msg);
        assert_int_equal(b.len, i == 1 ? 6 : 2 * LONG);
        assert_int_equal(b.data[b.len - 1], 'x');
    }
    assert_int_equal(clime_group_check(g, &e), CLIME_OK);
    for (int i = 1; i < 3; i++) assert_int_equal(clime_group_send(g, i, "", 0, &e), CLIME_OK);
    for (int i = 1; i < 3; i++) assert_int_equal(ranks_end(&r, i), 0);
    clime_buf_free(&b);
    free(text);
    clime_group_close(g);
}

static int says_another(const struct clime_place *p, void *arg) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_error e;
    (void)arg;
    if (!g || !clime_group_agree(g, p->rank == 2 ? "device cpu generic" : "device cpu avx2", &e)) return 1;
    return strstr(e.msg, "rank 2") && strstr(e.msg, "cpu generic") ? 0 : 2;
}

static void test_disagreement_is_told_to_all(void **state) {
    struct ranks r;
    struct clime_error e;
    (void)state;
    ranks_fork(&r, 3, says_another, NULL);
    struct clime_group *g = meet(&r.place, RANKS_LONG_US);
    assert_int_equal(clime_group_agree(g, "device cpu avx2", &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "rank 2 of 3"));
    assert_non_null(strstr(e.msg, "has state device cpu generic, rank 0 has device cpu avx2"));
    for (int i = 1; i < 3; i++) assert_int_equal(ranks_end(&r, i), 0);
    clime_group_close(g);
}

/* Rank 1 waits for a word that never comes; rank 2 ends in the way of arg. */
static int ends(const struct clime_place *p, void *arg) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_error e = {0};
    struct clime_buf b;
    const char *way = arg;
    if (!g) return 1;
    clime_buf_init(&b, 16);
    if (p->rank == 1) return clime_group_receive(g, 0, "a word", -1, &b, &e) && strstr(e.msg, "rank 2") ? 0 : 2;
    if (!strcmp(way, "killed")) raise(SIGKILL);
    clime_fail(&e, CLIME_ERR_DEVICE, "the device has failed");
    clime_group_fail(g, &e);
    pause(); /* what counts are its words, not its end */
    return 3;
}

/* Rank 3 is killed; rank 2 finds it, says so and ends; rank 1 looks when it has ended, or after `late_us`. */
static int finds(const struct clime_place *p, void *late_us) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_error e = {0};
    struct clime_buf b;
    if (!g) return 1;
    clime_buf_init(&b, 16);
    if (p->rank == 3) raise(SIGKILL);
    if (p->rank == 1) {
        if (clime_group_receive(g, 0, "the pid of rank 2", RANKS_LONG_US, &b, &e)) return 2;
        const struct timespec end = {.tv_nsec = *(int *)late_us * 1000L};
        int ended = (int)syscall(SYS_pidfd_open, *(pid_t *)(void *)b.data, 0);
        struct pollfd w = {.fd = ended, .events = POLLIN};
        if (ended >= 0) ppoll(&w, 1, &end, NULL);
    }
    while (!clime_group_check(g, &e)) clime_sleep_us(1000);
    clime_group_fail(g, &e);
    clime_group_close(g);
    return strstr(e.msg, "rank 3 of 4") ? 0 : 3;
}

/* Who ends because another one is lost is not taken for it by who looks later. */
static void test_who_is_lost_is_named_by_all(void **state) {
    struct ranks r;
    struct clime_error e;
    int late_us = 300000;
    (void)state;
    ranks_fork(&r, 4, finds, &late_us);
    struct clime_group *g = meet(&r.place, RANKS_LONG_US);
    assert_int_equal(clime_group_send(g, 1, &r.pid[2], sizeof r.pid[2], &e), CLIME_OK);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)r.pid[3], &info, WEXITED | WNOWAIT), 0);
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, r.pid[1], 0), .events = POLLIN};
    poll(&ended, 1, 2 * late_us / 1000); /* rank 0 is slow too */
    while (!clime_group_check(g, &e)) clime_sleep_us(1000);
    assert_non_null(strstr(e.msg, "rank 3 of 4"));
    clime_group_close(g);
    close(ended.fd);
    assert_int_equal(ranks_end(&r, 1), 0);
    assert_int_equal(ranks_end(&r, 2), 0);
    assert_int_equal(ranks_end(&r, 3), 128 + SIGKILL);
}

/* Rank 3 cannot write a file, says so and ends; rank 2 sees its end and says that. */
static int says_or_sees(const struct clime_place *p, void *unused) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_error e = {.code = CLIME_ERR_IO, .msg = "the disk is full"};
    (void)unused;
    if (!g) return 1;
    while (p->rank < 3 && !clime_group_check(g, &e)) clime_sleep_us(1000);
    clime_group_fail(g, &e);
    clime_group_close(g);
    return 0;
}

/* Who looks when both have spoken hears the reason of the one that had it. */
static void test_the_reason_is_of_who_had_it(void **state) {
    struct ranks r;
    struct clime_error e;
    enum clime_err code;
    (void)state;
    ranks_fork(&r, 4, says_or_sees, NULL);
    struct clime_group *g = meet(&r.place, RANKS_LONG_US);
    for (int i = 1; i < 4; i++) { /* rank 0 is slow: all have ended */
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)r.pid[i], &info, WEXITED | WNOWAIT), 0);
    }
    assert_int_not_equal(clime_group_check(g, &e), CLIME_OK);
    assert_int_equal(clime_group_lost(g, &code), 3);
    assert_int_equal(code, CLIME_ERR_IO);
    assert_non_null(strstr(e.msg, "the disk is full"));
    clime_group_close(g);
    for (int i = 1; i < 4; i++) assert_int_equal(ranks_end(&r, i), 0);
}

/* Everybody hears of it with its name, also a follower to whom it has no connection. */
static void test_lost_rank_ends_all_waits(void **state) {
    const char *const ways[] = {"killed", "said"}, *const words[] = {"is gone", "the device has failed"};
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct ranks r;
        struct clime_error e;
        struct clime_buf b;
        clime_buf_init(&b, 16);
        ranks_fork(&r, 3, ends, (void *)(uintptr_t)ways[way]);
        struct clime_group *g = meet(&r.place, RANKS_LONG_US);
        assert_int_equal(clime_group_receive(g, 1, "a step", RANKS_LONG_US, &b, &e), CLIME_ERR_UNAVAILABLE);
        assert_non_null(strstr(e.msg, "rank 2 of 3"));
        assert_non_null(strstr(e.msg, words[way]));
        struct clime_error again;
        assert_int_equal(clime_group_send(g, 1, "x", 1, &again), CLIME_ERR_UNAVAILABLE);
        assert_string_equal(again.msg, e.msg);
        clime_group_fail(g, &e);
        assert_int_equal(ranks_end(&r, 1), 0);
        kill(r.pid[2], SIGKILL);
        assert_int_equal(ranks_end(&r, 2), 128 + SIGKILL);
        clime_group_close(g);
        clime_buf_free(&b);
    }
}

static int freezes(const struct clime_place *p, void *arg) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    (void)arg;
    if (g) raise(SIGSTOP);
    return 1;
}

static void test_frozen_rank_is_named_at_the_limit(void **state) {
    struct ranks r;
    struct clime_error e;
    struct clime_buf b;
    (void)state;
    clime_buf_init(&b, 16);
    ranks_fork(&r, 2, freezes, NULL);
    struct clime_group *g = meet(&r.place, 300000);
    assert_int_equal(clime_group_receive(g, 1, "the end of a step", clime_group_limit_us(g), &b, &e),
                     CLIME_ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "the end of a step: rank 1 of 2"));
    assert_non_null(strstr(e.msg, "frozen"));
    kill(r.pid[1], SIGKILL);
    assert_int_equal(ranks_end(&r, 1), 128 + SIGKILL);
    clime_group_close(g);
    clime_buf_free(&b);
}

/* Rank 2 says something that nobody receives and freezes; rank 1 looks at its group until that is lost. */
static int freezes_with_a_word(const struct clime_place *p, void *arg) {
    struct clime_group *g = meet(p, RANKS_LONG_US);
    struct clime_error e = {0};
    (void)arg;
    if (!g) return 1;
    if (p->rank == 2) {
        if (clime_group_send(g, 0, "a word", 6, &e)) return 2;
        raise(SIGSTOP);
    }
    while (!clime_group_check(g, &e)) clime_sleep_us(5000);
    return strstr(e.msg, "rank 2 of 3") ? 0 : 3;
}

/* What a rank said before it was asked is no answer. */
static void test_a_word_of_before_is_no_answer(void **state) {
    struct ranks r;
    struct clime_error e;
    struct clime_buf b;
    enum clime_err code;
    (void)state;
    clime_buf_init(&b, 16);
    ranks_fork(&r, 3, freezes_with_a_word, NULL);
    struct clime_group *g = meet(&r.place, 300000);
    assert_true(clime_group_said(g, 2, 20000));
    assert_int_equal(clime_group_receive(g, 1, "the end of a step", 300000, &b, &e), CLIME_ERR_TIMEOUT);
    assert_int_equal(clime_group_lost(g, &code), 2);
    clime_group_fail(g, &e);
    assert_int_equal(ranks_end(&r, 1), 0);
    kill(r.pid[2], SIGKILL);
    assert_int_equal(ranks_end(&r, 2), 128 + SIGKILL);
    clime_group_close(g);
    clime_buf_free(&b);
}

static atomic_bool all_talk;

/* In place of the C library's: what is heard while one listens for an answer never ends, where that is asked for. */
ssize_t recv(int fd, void *at, size_t n, int flags) {
    __typeof__(&recv) real = (__typeof__(&recv))dlsym(RTLD_NEXT, "recv");
    if (!atomic_load(&all_talk) || flags != MSG_DONTWAIT) return real(fd, at, n, flags);
    memset(at, 'x', n);
    return (ssize_t)n;
}

/* Who says more than can be listened to, and no answer, is waited for no longer than one who says nothing. */
static void test_who_goes_on_talking_holds_nobody_up(void **state) {
    struct ranks r;
    struct clime_error e;
    struct clime_buf b;
    (void)state;
    clime_buf_init(&b, 16);
    ranks_fork(&r, 3, freezes_with_a_word, NULL);
    struct clime_group *g = meet(&r.place, 300000);
    assert_true(clime_group_said(g, 2, 20000));
    atomic_store(&all_talk, true);
    alarm(30);
    assert_int_equal(clime_group_receive(g, 1, "the end of a step", 300000, &b, &e), CLIME_ERR_TIMEOUT);
    alarm(0);
    atomic_store(&all_talk, false);
    for (int i = 1; i < 3; i++) {
        kill(r.pid[i], SIGKILL);
        assert_int_equal(ranks_end(&r, i), 128 + SIGKILL);
    }
    clime_group_close(g);
    clime_buf_free(&b);
}

/* ---- meeting ---- */

static int joins(const struct clime_place *p, void *arg) {
    struct clime_place mine = *p;
    struct clime_error e;
    const char *how = arg;
    if (!strcmp(how, "missing") && p->rank == 2) return 0;
    if (!strcmp(how, "twice")) mine.rank = 1;
    if (!strcmp(how, "world") && p->rank == 2) mine.world = 4;
    const struct clime_group_options o = ranks_options(&mine, RANKS_LONG_US);
    struct clime_group *g;
    return clime_group_meet(&o, &g, &e) ? 0 : 1;
}

static void fails_to_meet(const char *how, int64_t limit_us, enum clime_err code, const char *words) {
    struct ranks r;
    struct clime_error e = {0};
    struct clime_group *g;
    ranks_fork(&r, 3, joins, (void *)(uintptr_t)how);
    struct clime_group_options o = ranks_options(&r.place, RANKS_LONG_US);
    o.meet_limit_us = limit_us;
    assert_int_equal(clime_group_meet(&o, &g, &e), code);
    if (!strstr(e.msg, words)) fail_msg("%s", e.msg);
    for (int i = 1; i < 3; i++) { /* nobody is in; who comes later finds nobody any more */
        kill(r.pid[i], SIGKILL);
        int end = ranks_end(&r, i);
        assert_true(end == 0 || end == 128 + SIGKILL);
    }
}

static void test_who_does_not_fit_in_is_named(void **state) {
    (void)state;
    fails_to_meet("missing", 1500000, CLIME_ERR_TIMEOUT, "rank 2 of 3 did not come");
    fails_to_meet("twice", RANKS_LONG_US, CLIME_ERR_INPUT, "two processes say that they are rank 1");
    fails_to_meet("world", RANKS_LONG_US, CLIME_ERR_INPUT, "started for a group of 4, rank 0 for one of 3");
}

/* Connections of strangers, silent and loud ones, more than are held at a time. */
static void test_strangers_do_not_hold_it_up(void **state) {
    struct ranks r;
    struct clime_error e;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)state;
    ranks_fork(&r, 2, echo, NULL);
    pid_t strangers = fork();
    if (strangers == 0) {
        char noise[4096];
        int n = 0;
        memset(noise, 'n', sizeof noise);
        a.sin_port = htons((uint16_t)r.place.port);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (n < 100) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && n++ % 2)
                (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
            if (n == 0) close(fd);
        }
        pause();
    }
    struct clime_group *g = meet(&r.place, RANKS_LONG_US);
    assert_non_null(g);
    assert_int_equal(clime_group_agree(g, "alike", &e), CLIME_OK);
    assert_int_equal(clime_group_send(g, 1, "", 0, &e), CLIME_OK);
    assert_int_equal(ranks_end(&r, 1), 0);
    kill(strangers, SIGKILL);
    waitpid(strangers, NULL, 0);
    clime_group_close(g);
}

/* In place of the C library's: names whose first address is of no use, to who listens and to who comes. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    if (hints->ai_flags & AI_NUMERICHOST) return real_getaddrinfo(name, service, hints, out);
    if (!strcmp(name, "listen.test")) return two_addresses("192.0.2.1", "127.0.0.1", service, hints, out);
    if (!strcmp(name, "come.test")) return two_addresses("::1", "127.0.0.1", service, hints, out);
    return real_getaddrinfo(name, service, hints, out);
}

static int comes_by_name(const struct clime_place *p, void *arg) {
    struct clime_place mine = *p;
    snprintf(mine.address, sizeof mine.address, "come.test");
    return echo(&mine, arg);
}

static void test_a_second_address_will_do(void **state) {
    struct ranks r;
    struct clime_error e;
    struct clime_group *g;
    (void)state;
    ranks_fork(&r, 2, comes_by_name, NULL);
    snprintf(r.place.address, sizeof r.place.address, "listen.test");
    struct clime_group_options o = ranks_options(&r.place, RANKS_LONG_US);
    o.meet_limit_us = 10000000;
    if (clime_group_meet(&o, &g, &e)) fail_msg("%s", e.msg);
    assert_int_equal(clime_group_agree(g, "alike", &e), CLIME_OK);
    assert_int_equal(clime_group_send(g, 1, "", 0, &e), CLIME_OK);
    assert_int_equal(ranks_end(&r, 1), 0);
    clime_group_close(g);
}

/* ---- ranks that rank 0 starts itself ---- */

static void test_started_ranks(void **state) {
    struct clime_group_options o = {.meet_limit_us = RANKS_LONG_US, .limit_us = RANKS_LONG_US};
    struct clime_error e;
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    (void)state;
    assert_true(n > 0);
    self[n] = 0;
    const char *const argv[] = {self, "rank", NULL}, *const bad[] = {"/bin/false", NULL};
    assert_int_equal(clime_group_start(3, argv, NULL, &o, &e), CLIME_OK);
    struct clime_group *g;
    if (clime_group_meet(&o, &g, &e)) fail_msg("%s", e.msg);
    assert_int_equal(clime_group_agree(g, "alike", &e), CLIME_OK);
    clime_group_close(g);
    clime_group_stop(o.children);
    assert_int_equal(clime_group_start(2, bad, NULL, &o, &e), CLIME_OK); /* said at once, not at the limit */
    assert_int_equal(clime_group_meet(&o, &g, &e), CLIME_ERR_UNAVAILABLE);
    assert_non_null(strstr(e.msg, "rank 1 exited with code 1"));
    clime_group_stop(o.children);
}

static int started_rank(void) {
    struct clime_place p;
    struct clime_error e;
    if (clime_place_find(&p, &e) || !p.ours || clime_group_end_with_parent(&e)) return 1;
    return echo(&p, NULL);
}

static void test_places(void **state) {
    struct clime_place p;
    struct clime_error e;
    (void)state;
    setenv("SLURM_PROCID", "0", 1); /* a shell in a batch job is no rank */
    setenv("SLURM_NTASKS", "4", 1);
    assert_int_equal(clime_place_find(&p, &e), CLIME_OK);
    assert_int_equal(p.world, 1);
    setenv("MASTER_ADDR", "node7", 1);
    assert_int_equal(clime_place_find(&p, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "MASTER_PORT"));
    setenv("MASTER_PORT", "29500", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_LOCALID", "1", 1);
    assert_int_equal(clime_place_find(&p, &e), CLIME_OK);
    assert_true(p.rank == 3 && p.world == 4 && p.local_rank == 1 && p.port == 29500 && !p.ours);
    setenv("RANK", "1", 1); /* torch's come first */
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(clime_place_find(&p, &e), CLIME_OK);
    assert_true(p.rank == 1 && p.world == 2);
    setenv("RANK", "2", 1);
    assert_int_equal(clime_place_find(&p, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "RANK=2: a number from 0 to 1"));
    const char *const names[] = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "MASTER_ADDR",
                                 "MASTER_PORT",  "RANK",         "WORLD_SIZE"};
    for (size_t i = 0; i < CLIME_COUNT(names); i++) unsetenv(names[i]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages),
                                       cmocka_unit_test(test_disagreement_is_told_to_all),
                                       cmocka_unit_test(test_lost_rank_ends_all_waits),
                                       cmocka_unit_test(test_who_is_lost_is_named_by_all),
                                       cmocka_unit_test(test_the_reason_is_of_who_had_it),
                                       cmocka_unit_test(test_frozen_rank_is_named_at_the_limit),
                                       cmocka_unit_test(test_a_word_of_before_is_no_answer),
                                       cmocka_unit_test(test_who_goes_on_talking_holds_nobody_up),
                                       cmocka_unit_test(test_who_does_not_fit_in_is_named),
                                       cmocka_unit_test(test_strangers_do_not_hold_it_up),
                                       cmocka_unit_test(test_a_second_address_will_do),
                                       cmocka_unit_test(test_started_ranks),
                                       cmocka_unit_test(test_places)};
    if (argc == 2 && !strcmp(argv[1], "rank")) return started_rank();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
