/* Version labels of weights, from workers and clients, and their order. Pure; any thread. */
#ifndef CLIME_ROUTER_POLICY_VERSION_H
#define CLIME_ROUTER_POLICY_VERSION_H

#include "common/str.h"

#define CLIME_LABEL_SIZE 257 /* a label and its NUL; servers take labels up to 256 bytes */

/* Reads the member "weight_version" of a JSON object. False when it is absent, too long, or neither a string nor null;
 * null gives the empty label. */
bool clime_version_read(struct clime_str json, char out[CLIME_LABEL_SIZE]);

/* Labels that differ only in their leading decimal number ("7", "7@RUN") compare by it; any other label that differs is
 * older. */
bool clime_version_is_older(const char *version, const char *than);

#endif
