/* Keys: whether a client's is the right one, told in a time that says nothing about how nearly it was; and new ones
 * that nobody can guess. Any thread. */
#ifndef CLIME_COMMON_HTTP_SECRET_H
#define CLIME_COMMON_HTTP_SECRET_H

#include "common/err.h"
#include "common/rng.h"

/* Every byte of `given` is looked at, wherever the first wrong one is: only the lengths show in the time. */
bool clime_secret_equal(const char *given, const char *key);

#define CLIME_SECRET_CHARS CLIME_RANDOM_ID

/* A new key, in a file that only its owner can read; what was there is gone. CLIME_ERR_IO names the file. */
enum clime_err clime_secret_make(const char *path, char key[CLIME_SECRET_CHARS + 1], struct clime_error *e);

#endif
