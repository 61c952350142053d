/* Finds the layer in which a server routed a token to other experts, from the server's hash alone.
 *
 * A hash is folded layer by layer (kernels/checksum.h), and a fold can be undone if its input is known. If only one
 * layer differs, each candidate layer implies what the server chose there; in the right layer that is a valid choice,
 * here one with a single other expert. Pure; any thread. */
#ifndef CLIME_TRAINER_LEARN_ROUTING_H
#define CLIME_TRAINER_LEARN_ROUTING_H

#include "kernels/kernels.h"

/* chosen[n, r->k]: a token's experts here, in n layers in order. Returns the layer in which a single expert differs;
 * -1: more differ, or the hash is ambiguous. */
int clime_routing_layer(const struct clime_router *r, int n, const int32_t *chosen, uint32_t said);

#endif
