/* The sockets behind CivetWeb's connections, which it has no call to tell, and what the kernel knows about them.
 *
 * They are found among the descriptors of the process. That is sound because of two facts: a connection stays open
 * while its handler runs, so its descriptor is among ours the whole time; and the kernel allows one socket for each
 * (local address and port, peer address and port). Any thread. Nothing here needs a free descriptor.
 */
#ifndef CLIME_COMMON_HTTP_PEER_H
#define CLIME_COMMON_HTTP_PEER_H

#include <stdbool.h>
#include <stdint.h>

/* Calls fn for every descriptor of this process that skip does not want skipped, until fn returns false. */
void clime_peer_each(bool (*skip)(void *arg, int fd), void *skip_arg, bool (*fn)(void *arg, int fd), void *arg);

/* The TCP socket whose peer is (remote_addr, remote_port) and whose own port is local_port; -1 when there is none.
 * remote_addr: numeric, as getnameinfo writes it. Costs some 100 ns for each descriptor that is not skipped: keep the
 * result. A peer that reached two of our addresses from one port has two such sockets; either is found. */
int clime_peer_socket(const char *remote_addr, int remote_port, int local_port, bool (*skip)(void *arg, int fd),
                      void *skip_arg);

struct clime_peer_idle {
    uint64_t cookie; /* no two sockets of this machine have the same */
    int64_t idle_us; /* since the last byte came, or since it was connected */
};
/* False when the descriptor is no connected TCP socket with that port of our own. */
bool clime_peer_idle(int fd, int local_port, struct clime_peer_idle *out);

bool clime_peer_unread(int socket);   /* bytes have come that nobody has read */
bool clime_peer_closed(int socket);   /* the peer has closed or reset its side; unread data does not hide it */
bool clime_peer_writable(int socket); /* a small send would not wait */

#endif
