/* Sockets accepted by CivetWeb (see accepted.h). Called on its accepting threads, its workers, and the thread of a
 * connection table; one lock guards the list.
 *
 * Invariant: a descriptor is used only after the kernel confirms that its connection is the accepted one, because its
 * owner may have closed it and the number been reused. An unsorted list suffices: it holds the few connections that
 * have sent nothing yet, and an entry costs a nanosecond to check.
 */
#include "common/http/accepted.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"

struct entry {
    struct clime_accepted a;
    struct sockaddr_storage peer;
    socklen_t peer_len;
    int peer_port, local_port;
    bool ended;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct entry *entries;
static int n_entries, n_room;
static uint64_t last_id;

static int port_of(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)a)->sin_port);
    if (a->ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)a)->sin6_port);
    return -1;
}

static int local_port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) ? -1 : port_of(&a);
}

static struct entry *entry_of(int fd) {
    for (int i = 0; i < n_entries; i++)
        if (entries[i].a.fd == fd) return &entries[i];
    return NULL;
}

static void forget(struct entry *entry) {
    *entry = entries[--n_entries];
}

static void note(int fd) {
    struct entry new = {.a = {.fd = fd, .accepted_us = clime_now_us()}, .peer_len = sizeof new.peer};
    if (getpeername(fd, (struct sockaddr *)&new.peer, &new.peer_len)) return; /* reset: no request will arrive */
    new.peer_port = port_of(&new.peer);
    new.local_port = local_port_of(fd);
    if (new.peer_port < 0 || new.local_port < 0) return;
    pthread_mutex_lock(&lock);
    new.a.id = ++last_id;
    struct entry *place = entry_of(fd); /* left by a connection closed before its first request */
    if (!place && n_entries == n_room) {
        n_room = n_room ? n_room * 2 : 64;
        entries = xrealloc(entries, (size_t)n_room * sizeof *entries);
    }
    *(place ? place : &entries[n_entries++]) = new;
    pthread_mutex_unlock(&lock);
}

static _Thread_local bool is_noted; /* record this thread's accepts */

void clime_accepted_note_mine(void) {
    is_noted = true;
}

/* Replaces libc's accept. Other threads (NCCL's) get the plain behaviour. CivetWeb's sockets get FD_CLOEXEC, which it
 * would set a moment later. */
int accept(int listener, struct sockaddr *address, socklen_t *length) {
    int fd = accept4(listener, address, length, is_noted ? SOCK_CLOEXEC : 0);
    if (fd >= 0 && is_noted) note(fd);
    return fd;
}

static bool still_connected(int fd, const struct entry *entry) {
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && len == entry->peer_len &&
           memcmp(&peer, &entry->peer, len) == 0 && local_port_of(fd) == entry->local_port;
}

static bool has_address(const struct entry *entry, const char *remote_addr) {
    char text[NI_MAXHOST];
    return getnameinfo((const struct sockaddr *)&entry->peer, entry->peer_len, text, sizeof text, NULL, 0,
                       NI_NUMERICHOST) == 0 &&
           strcmp(text, remote_addr) == 0;
}

int clime_accepted_claim(const char *remote_addr, int remote_port, int local_port, bool *ended) {
    int found = -1;
    *ended = false;
    pthread_mutex_lock(&lock);
    for (int i = n_entries - 1; i >= 0 && found < 0; i--) { /* forget moves the last entry, already checked */
        struct entry *entry = &entries[i];
        if (entry->peer_port != remote_port || entry->local_port != local_port) continue;
        if (!has_address(entry, remote_addr)) continue;
        if (still_connected(entry->a.fd, entry)) {
            found = entry->a.fd;
            *ended = entry->ended;
        }
        forget(entry);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void clime_accepted_each(int local_port, void (*fn)(void *arg, const struct clime_accepted *a), void *arg) {
    pthread_mutex_lock(&lock);
    for (int i = n_entries - 1; i >= 0; i--) {
        if (entries[i].local_port != local_port || entries[i].ended) continue;
        if (still_connected(entries[i].a.fd, &entries[i]))
            fn(arg, &entries[i].a);
        else
            forget(&entries[i]);
    }
    pthread_mutex_unlock(&lock);
}

void clime_accepted_end(uint64_t id) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_entries; i++) {
        if (entries[i].a.id != id) continue;
        /* Pinned by a duplicate. Without a free descriptor it is ended anyway, as that is when it is needed most. */
        int held = fcntl(entries[i].a.fd, F_DUPFD_CLOEXEC, 0), fd = held >= 0 ? held : entries[i].a.fd;
        if (still_connected(fd, &entries[i])) shutdown(fd, SHUT_RD);
        entries[i].ended = true;
        if (held >= 0) close(held);
        break;
    }
    pthread_mutex_unlock(&lock);
}
