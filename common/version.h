/* The version of all programs, for --version and over HTTP. */
#ifndef CLIME_COMMON_VERSION_H
#define CLIME_COMMON_VERSION_H

#define CLIME_VERSION "0.1.0"

#endif
