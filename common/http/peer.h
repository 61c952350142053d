/* The socket behind a connection of CivetWeb, which has no call that tells it, and what the kernel knows about it.
 *
 * Sound because of two facts: the connection stays open while its handler runs, so its descriptor is among ours the
 * whole time; and the kernel allows one socket for each (local address and port, peer address and port). Any thread,
 * but only while the handler of that connection runs.
 */
#ifndef CLIME_COMMON_HTTP_PEER_H
#define CLIME_COMMON_HTTP_PEER_H

#include <stdbool.h>

/* The TCP socket of this process whose peer is (remote_addr, remote_port) and whose own port is local_port; -1 when
 * there is none, or several (a peer that reached two of our addresses from one port), or they cannot be listed.
 * remote_addr: numeric, as getnameinfo writes it. Costs about 1 us per open descriptor: keep the result. */
int clime_peer_socket(const char *remote_addr, int remote_port, int local_port);

bool clime_peer_closed(int socket);   /* the peer has closed or reset its side; unread data does not hide it */
bool clime_peer_writable(int socket); /* a small send would not wait */

#endif
