/* The sockets of connections, which CivetWeb has no call to tell.
 *
 * CivetWeb accepts with accept(2), and accepted.c defines that function for the whole program: what it hands out to
 * CivetWeb's threads is noted here until the connection's first request claims it by the peer's address, which CivetWeb
 * does tell. What nobody has claimed are connections that have sent no request yet, and descriptors that were closed
 * without one. (Searching the process's descriptors instead cost every connection some 100 ns for each descriptor,
 * under the lock of all: 1,024 that came at once held up everything else for half a second.) Any thread. Nothing here
 * needs a free descriptor.
 */
#ifndef CLIME_COMMON_HTTP_ACCEPTED_H
#define CLIME_COMMON_HTTP_ACCEPTED_H

#include <stdbool.h>
#include <stdint.h>

/* Begins noting what the calling thread accepts: CivetWeb's accepting threads alone. Other libraries of the process
 * accept too, and nobody would ever claim their sockets. */
void clime_accepted_note_mine(void);

/* The socket accepted on local_port whose peer is (remote_addr, remote_port), which is noted no longer; -1 when there
 * is none. remote_addr: numeric, as getnameinfo writes it. *ended: it was ended while its request was on the way, of
 * which a part may be missing. */
int clime_accepted_claim(const char *remote_addr, int remote_port, int local_port, bool *ended);

struct clime_accepted {
    int fd;
    uint64_t id; /* no two that were accepted have the same */
    int64_t accepted_us;
};
/* Calls fn for every socket accepted on local_port that nobody has claimed or ended. Its thread may close it at any
 * moment, so fn does no more than ask the kernel about it. fn calls nothing of this header. */
void clime_accepted_each(int local_port, void (*fn)(void *arg, const struct clime_accepted *a), void *arg);
/* Shuts the receiving side of one that was seen there, if it is still what it was and still unclaimed. */
void clime_accepted_end(uint64_t id);

#endif
