/* Labels of weights: what workers and clients say, and which of two is older. Pure; any thread. */
#ifndef CLIME_ROUTER_POLICY_VERSION_H
#define CLIME_ROUTER_POLICY_VERSION_H

#include "common/str.h"

#define CLIME_LABEL_SIZE 257 /* a label and its NUL; servers take labels up to 256 bytes */

/* The member "weight_version" of a JSON object. False when there is none, or it is neither a string that fits nor null;
 * null gives the empty label. */
bool clime_version_read(struct clime_str json, char out[CLIME_LABEL_SIZE]);

/* Of two that begin with a decimal number and go on alike ("7", "7@RUN") the smaller one is older, of other labels any
 * that differs is. */
bool clime_version_is_older(const char *version, const char *than);

#endif
