/* Several API keys, each with a name and limits of its own: one client that asks too much is told so, and the others
 * have their share.
 *
 * They come from a file, a line each: NAME KEY [concurrent=N] [per-minute=N]; "#" begins a comment. concurrent:
 * requests that hold a slot at a time; per-minute: how many of them may begin, N at once and from then on as fast as
 * the minute allows. Such a key opens what users may ask, never a control call. Read once, at the start; finding one
 * takes a time that says nothing about any of them. Any thread.
 */
#ifndef CLIME_COMMON_HTTP_KEYS_H
#define CLIME_COMMON_HTTP_KEYS_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct clime_http_keys;
struct clime_http_key; /* one of them, as long as they live */

enum clime_err clime_http_keys_read(const char *path, struct clime_http_keys **out, struct clime_error *e);
void clime_http_keys_free(struct clime_http_keys *keys); /* NULL is fine */

struct clime_http_key *clime_http_keys_find(const struct clime_http_keys *keys, const char *given); /* NULL: none */
/* A request with a slot begins, and ends. false: it is past a limit, which `why` names, and may come again then. */
bool clime_http_key_take(struct clime_http_key *key, int64_t now_us, struct clime_error *why, int *retry_after_s);
void clime_http_key_give(struct clime_http_key *key);

void clime_http_keys_metrics(const struct clime_http_keys *keys, struct clime_buf *out);

#endif
