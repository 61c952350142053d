/* Shared by the files of packets. Internal to model/packet/. */
#ifndef CLIME_MODEL_PACKET_PACKET_INT_H
#define CLIME_MODEL_PACKET_PACKET_INT_H

#include "model/packet/packet.h"

#define CLIME_PACKET_MAGIC "climewp1"
#define CLIME_PACKET_HEAD ((size_t)64)
#define CLIME_PACKET_ROW ((size_t)64)

struct clime_packet *clime_packet_new(const struct clime_packet_shape *s); /* its manifest is zero */
void clime_packet_name(struct clime_packet *p);                            /* sets its id from its manifest */
uint64_t clime_packet_sum(const void *data, size_t len);

#endif
