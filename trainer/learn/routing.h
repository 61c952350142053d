/* In which layer other experts drew a token than are chosen here, from the hash alone that a server says of it.
 *
 * A hash is folded layer by layer (kernels/checksum.h), and a fold can be taken back by who knows what was folded. So
 * if only one layer chose otherwise, what it must have chosen follows from the choices here, for each layer that it may
 * have been; and in the right one that is a choice: here, that of one other expert. Pure; any thread. */
#ifndef CLIME_TRAINER_LEARN_ROUTING_H
#define CLIME_TRAINER_LEARN_ROUTING_H

#include "kernels/kernels.h"

/* chosen[n, r->k]: a token's experts here, of n layers in their order. The one of them in which a single expert was
 * another; -1: more was, or the hash does not tell. */
int clime_routing_layer(const struct clime_router *r, int n, const int32_t *chosen, uint32_t said);

#endif
