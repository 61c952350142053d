/* API keys: constant-time comparison, and generation of unpredictable ones. Any thread. */
#ifndef CLIME_COMMON_HTTP_SECRET_H
#define CLIME_COMMON_HTTP_SECRET_H

#include "common/err.h"
#include "common/rng.h"

/* Compares every byte of `given`: the time reveals only the lengths. */
bool clime_secret_equal(const char *given, const char *key);

#define CLIME_SECRET_CHARS CLIME_RANDOM_ID

/* Writes a new key to a file that only its owner can read, replacing any old one. CLIME_ERR_IO names the file. */
enum clime_err clime_secret_make(const char *path, char key[CLIME_SECRET_CHARS + 1], struct clime_error *e);

#endif
