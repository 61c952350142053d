/* Whether a client's key is the right one, told in a time that says nothing about how nearly it was. Any thread. */
#ifndef CLIME_COMMON_HTTP_SECRET_H
#define CLIME_COMMON_HTTP_SECRET_H

#include <stdbool.h>

/* Every byte of `given` is looked at, wherever the first wrong one is: only the lengths show in the time. */
bool clime_secret_equal(const char *given, const char *key);

#endif
