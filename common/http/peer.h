/* Queries the kernel about a connection's socket. Any thread. Nothing here needs a free descriptor. */
#ifndef CLIME_COMMON_HTTP_PEER_H
#define CLIME_COMMON_HTTP_PEER_H

#include <stdbool.h>
#include <stdint.h>

int64_t clime_peer_idle_us(int socket); /* since the last byte arrived, or since connect; 0 = unknown */
bool clime_peer_unread(int socket);     /* unread bytes are pending */
bool clime_peer_closed(int socket);     /* the peer closed or reset its side, even with unread data */
bool clime_peer_writable(int socket);   /* a small send would not block */

#endif
