/* The sockets of accepted connections, which CivetWeb does not expose.
 *
 * CivetWeb calls accept(2), and accepted.c defines that function for the whole program. It records each socket that a
 * CivetWeb thread accepts until the connection's first request claims it by the peer's address, which CivetWeb does
 * expose. Unclaimed sockets are connections without a request yet, and descriptors closed without one. (Searching all
 * descriptors of the process instead cost each connection about 100 ns per descriptor under a global lock: 1,024
 * simultaneous connections stalled the server for half a second.) Any thread. Nothing here needs a free descriptor.
 */
#ifndef CLIME_COMMON_HTTP_ACCEPTED_H
#define CLIME_COMMON_HTTP_ACCEPTED_H

#include <stdbool.h>
#include <stdint.h>

/* Records the sockets that the calling thread accepts. For CivetWeb's accepting threads only: sockets of other
 * libraries would never be claimed. */
void clime_accepted_note_mine(void);

/* Claims the socket accepted on local_port from (remote_addr, remote_port), and forgets it; -1 when there is none.
 * remote_addr: numeric, as getnameinfo writes it. *ended: the socket was shut down during its request, of which a part
 * may be missing. */
int clime_accepted_claim(const char *remote_addr, int remote_port, int local_port, bool *ended);

struct clime_accepted {
    int fd;
    uint64_t id; /* unique for each accepted socket */
    int64_t accepted_us;
};
/* Calls fn for every socket accepted on local_port that is neither claimed nor ended. CivetWeb may close it at any
 * moment, so fn only queries the kernel about it. fn must not call functions of this header. */
void clime_accepted_each(int local_port, void (*fn)(void *arg, const struct clime_accepted *a), void *arg);
/* Shuts down the receiving side of a socket that clime_accepted_each reported, if it is still open and unclaimed. */
void clime_accepted_end(uint64_t id);

#endif
