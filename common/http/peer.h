/* What the kernel knows about the socket of a connection. Any thread. Nothing here needs a free descriptor. */
#ifndef CLIME_COMMON_HTTP_PEER_H
#define CLIME_COMMON_HTTP_PEER_H

#include <stdbool.h>
#include <stdint.h>

int64_t clime_peer_idle_us(int socket); /* since the last byte came, or since it was connected; 0 = not known */
bool clime_peer_unread(int socket);     /* bytes have come that nobody has read */
bool clime_peer_closed(int socket);     /* the peer has closed or reset its side; unread data does not hide it */
bool clime_peer_writable(int socket);   /* a small send would not wait */

#endif
