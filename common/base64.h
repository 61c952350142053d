/* Base64 encoder and decoder (RFC 4648, section 4). Any thread, no state. */
#ifndef CLIME_COMMON_BASE64_H
#define CLIME_COMMON_BASE64_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

/* out: text.len / 4 * 3 bytes. CLIME_ERR_INPUT: another character, white space, a wrong length or wrong padding. */
enum clime_err clime_base64_decode(struct clime_str text, uint8_t *out, size_t *n_out, struct clime_error *e);

void clime_base64_encode(const void *data, size_t n, struct clime_buf *out); /* appends */

#endif
