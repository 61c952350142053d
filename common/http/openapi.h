/* The contracts of openapi/ as JSON, for GET /openapi.json. The build converts each from YAML (openapi_main.c,
 * Makefile) into the archive of its layer. Constant.
 */
#ifndef CLIME_COMMON_HTTP_OPENAPI_H
#define CLIME_COMMON_HTTP_OPENAPI_H

#include "common/str.h"

extern const struct clime_str clime_openapi_server, clime_openapi_router, clime_openapi_trainer, clime_openapi_page;

#endif
