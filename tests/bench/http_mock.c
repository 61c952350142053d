/* The two ends of a router's measurement, each one thread over epoll, so that neither is what is measured:
 *
 *   http_mock serve PORT_FILE EVENTS      a worker that answers at once; {"stream": true} gets EVENTS events
 *   http_mock load PORT PATH BODY_FILE CONNECTIONS SECONDS
 *                                         as many closed loops, kept alive; prints
 *                                         requests errors seconds mean_us p50_us p99_us cpu_us
 *
 * Plain C without clime's libraries: what stands on either side of a router must not be the router's own code. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (perror(#x), exit(1)))
enum { MAX_FD = 8192, ROOM = 65536 };

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* One side of a connection: what has come of the present message. */
struct conn {
    char head[ROOM + 1]; /* its first bytes */
    size_t n;            /* bytes in head */
    size_t head_len;     /* 0 = not whole yet */
    size_t body, length; /* seen, and to come; chunked: length is SIZE_MAX */
    char tail[5];        /* the last bytes seen, for the end of chunks and for "stream" */
    int streams;
    size_t sent;
    int64_t began_us;
};
static struct conn *conns[MAX_FD];

static void fresh(struct conn *c) {
    c->n = c->head_len = c->body = c->length = 0;
    c->streams = 0;
    memset(c->tail, 0, sizeof c->tail);
}

static void see_tail(struct conn *c, const char *data, size_t n) {
    for (size_t i = n > 5 ? n - 5 : 0; i < n; i++) {
        memmove(c->tail, c->tail + 1, 4);
        c->tail[4] = data[i];
    }
}

static void read_head(struct conn *c) {
    char *end = memmem(c->head, c->n, "\r\n\r\n", 4);
    if (!end) return;
    c->head_len = (size_t)(end - c->head) + 4;
    c->head[c->head_len - 1] = 0;
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (length)
        c->length = strtoull(length + 17, NULL, 10);
    else if (strcasestr(c->head, "\r\ntransfer-encoding: chunked"))
        c->length = SIZE_MAX;
}

/* Takes what came; 1 when the message is whole. Nothing is pipelined. */
static int take(struct conn *c, const char *data, size_t n) {
    size_t in_head = 0;
    if (!c->head_len) {
        in_head = n < ROOM - c->n ? n : ROOM - c->n;
        size_t before = c->n;
        memcpy(c->head + c->n, data, in_head);
        c->n += in_head;
        read_head(c);
        if (!c->head_len) return 0;
        in_head = c->head_len - before;
    }
    if (memmem(data + in_head, n - in_head, "\"stream\": true", 14)) c->streams = 1;
    c->body += n - in_head;
    see_tail(c, data + in_head, n - in_head);
    return c->length == SIZE_MAX ? memcmp(c->tail, "0\r\n\r\n", 5) == 0 : c->body >= c->length;
}

static void send_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN) continue; /* small: the socket's buffer holds it */
        if (k <= 0) return;
        data += k;
        n -= (size_t)k;
    }
}

static void answer(int fd, const struct conn *c, int events) {
    static const char body[] =
        "{\"text\": \"ok\", \"output_ids\": [1], \"meta_info\": {\"id\": \"x\", \"finish_reason\": "
        "{\"type\": \"stop\"}, \"prompt_tokens\": 1, \"completion_tokens\": 1}}";
    char out[1024];
    if (!c->streams) {
        int n = snprintf(out, sizeof out,
                         "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                         sizeof body - 1, body);
        send_all(fd, out, (size_t)n);
        return;
    }
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    send_all(fd, out, (size_t)n);
    for (int i = 0; i < events; i++) {
        n = snprintf(out, sizeof out, "%zx\r\ndata: %s\n\n\r\n", sizeof body - 1 + 8, body);
        send_all(fd, out, (size_t)n);
    }
    send_all(fd, "0\r\n\r\n", 5);
}

static int listen_at(const char *port_file) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 4096));
    CHECK(!getsockname(fd, (struct sockaddr *)&a, &len));
    FILE *f = fopen(port_file, "w");
    CHECK(f && fprintf(f, "%d", ntohs(a.sin_port)) > 0 && !fclose(f));
    return fd;
}

static void watch(int ep, int fd, uint32_t what, int op) {
    struct epoll_event ev = {.events = what, .data.fd = fd};
    CHECK(!epoll_ctl(ep, op, fd, &ev));
}

static void keep(int fd) {
    int one = 1;
    CHECK(fd < MAX_FD);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!conns[fd]) CHECK(conns[fd] = calloc(1, sizeof *conns[fd]));
    fresh(conns[fd]);
}

static void serve(const char *port_file, int events) {
    static char data[1 << 20];
    struct epoll_event evs[256];
    int ep = epoll_create1(0), at = listen_at(port_file), fd;
    watch(ep, at, EPOLLIN, EPOLL_CTL_ADD);
    for (;;) {
        int n = epoll_wait(ep, evs, 256, -1);
        for (int i = 0; i < n; i++) {
            if (evs[i].data.fd == at) {
                while ((fd = accept4(at, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    keep(fd);
                    watch(ep, fd, EPOLLIN, EPOLL_CTL_ADD);
                }
                continue;
            }
            fd = evs[i].data.fd;
            ssize_t k = recv(fd, data, sizeof data, 0);
            if (k < 0 && errno == EAGAIN) continue;
            if (k <= 0) {
                close(fd);
                continue;
            }
            if (!take(conns[fd], data, (size_t)k)) continue;
            answer(fd, conns[fd], events);
            fresh(conns[fd]);
        }
    }
}

/* ---- load ---- */

static char *request;
static size_t request_len;
static int64_t *took, n_took, n_errors;

static int connect_to(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a));
    keep(fd);
    return fd;
}

static void push(int ep, int fd, int op) {
    struct conn *c = conns[fd];
    while (c->sent < request_len) {
        ssize_t k = send(fd, request + c->sent, request_len - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k <= 0) break;
        c->sent += (size_t)k;
    }
    watch(ep, fd, EPOLLIN | (c->sent < request_len ? EPOLLOUT : 0), op);
}

static void begin(int ep, int fd, int op) {
    fresh(conns[fd]);
    conns[fd]->sent = 0;
    conns[fd]->began_us = now_us();
    push(ep, fd, op);
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void load(int port, const char *path, const char *body_file, int n_conns, double seconds) {
    static char data[1 << 20];
    struct epoll_event evs[256];
    FILE *f = fopen(body_file, "rb");
    CHECK(f && !fseek(f, 0, SEEK_END));
    size_t body_len = (size_t)ftell(f);
    rewind(f);
    CHECK(request = malloc(body_len + 1024));
    request_len = (size_t)snprintf(request, 1024,
                                   "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                                   "Content-Length: %zu\r\n\r\n",
                                   path, body_len);
    CHECK(fread(request + request_len, 1, body_len, f) == body_len);
    request_len += body_len;
    CHECK(took = malloc(sizeof *took << 24));
    int ep = epoll_create1(0);
    int64_t t0 = now_us(), until = t0 + (int64_t)(seconds * 1e6), warm = t0 + (int64_t)(seconds * 2e5), n_seen = 0;
    for (int i = 0; i < n_conns; i++) begin(ep, connect_to(port), EPOLL_CTL_ADD);
    while (now_us() < until) {
        int n = epoll_wait(ep, evs, 256, 100);
        for (int i = 0; i < n; i++) {
            int fd = evs[i].data.fd;
            if (evs[i].events & EPOLLOUT) push(ep, fd, EPOLL_CTL_MOD);
            if (!(evs[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            ssize_t k = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (k < 0 && errno == EAGAIN) continue;
            int64_t now = now_us();
            int whole = k > 0 && take(conns[fd], data, (size_t)k);
            if (k > 0 && !whole) continue;
            if (k <= 0 || !strstr(conns[fd]->head, " 200 ")) n_errors++;
            n_seen++;
            if (whole && now > warm && n_took < 1 << 24) took[n_took++] = now - conns[fd]->began_us;
            int op = EPOLL_CTL_MOD;
            if (k <= 0 || strcasestr(conns[fd]->head, "\r\nconnection: close")) {
                close(fd);
                fd = connect_to(port);
                op = EPOLL_CTL_ADD;
            }
            begin(ep, fd, op);
        }
    }
    double lasted = (double)(now_us() - t0) / 1e6, sum = 0;
    for (int64_t i = 0; i < n_took; i++) sum += (double)took[i];
    qsort(took, (size_t)n_took, sizeof *took, by_time);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    int64_t m = n_took ? n_took : 1;
    if (!n_took) took[0] = 0;
    printf("%lld %lld %.3f %.1f %lld %lld %lld\n", (long long)n_seen, (long long)n_errors, lasted, sum / (double)m,
           (long long)took[m / 2], (long long)took[m * 99 / 100],
           (long long)(u.ru_utime.tv_sec * 1000000 + u.ru_utime.tv_usec + u.ru_stime.tv_sec * 1000000 +
                       u.ru_stime.tv_usec));
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "serve")) serve(argv[2], (int)strtol(argv[3], NULL, 10));
    if (argc == 7 && !strcmp(argv[1], "load")) {
        load((int)strtol(argv[2], NULL, 10), argv[3], argv[4], (int)strtol(argv[5], NULL, 10), strtod(argv[6], NULL));
        return 0;
    }
    fprintf(stderr, "http_mock serve PORT_FILE EVENTS | load PORT PATH BODY_FILE CONNECTIONS SECONDS\n");
    return 2;
}
