/* Named API keys with rate limits: a client past its limits is refused, and the others keep their share.
 *
 * Read once at start from a file, one line per key: NAME KEY [concurrent=N] [per-minute=N]; "#" begins a comment.
 * concurrent: requests that hold a slot at a time; per-minute: a token bucket of N requests, refilled at N per minute.
 * Such a key opens user routes, never a control call. Lookup time reveals nothing about any key. Any thread.
 */
#ifndef CLIME_COMMON_HTTP_KEYS_H
#define CLIME_COMMON_HTTP_KEYS_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct clime_http_keys;
struct clime_http_key; /* lives as long as the clime_http_keys */

enum clime_err clime_http_keys_read(const char *path, struct clime_http_keys **out, struct clime_error *e);
void clime_http_keys_free(struct clime_http_keys *keys); /* NULL is fine */

struct clime_http_key *clime_http_keys_find(const struct clime_http_keys *keys, const char *given); /* NULL = none */
/* Start and end of a request with a slot. false: above a limit, which `why` names; retry after *retry_after_s. */
bool clime_http_key_take(struct clime_http_key *key, int64_t now_us, struct clime_error *why, int *retry_after_s);
void clime_http_key_give(struct clime_http_key *key);

void clime_http_keys_metrics(const struct clime_http_keys *keys, struct clime_buf *out);

#endif
