/* Typed access to config.json's fields: CLIME_ERR_INPUT names the field that is wrong. Internal to model/. */
#ifndef CLIME_MODEL_CONFIG_CONFIG_KEYS_H
#define CLIME_MODEL_CONFIG_CONFIG_KEYS_H

#include "common/err.h"
#include "common/json/tree.h"

bool clime_key_absent(const struct cJSON *n); /* or null */

/* An integer in [min, max]; absent gives def, or an error when def < min. */
enum clime_err clime_key_int(const struct cJSON *o, const char *key, int min, int max, int def, int *out,
                             struct clime_error *e);
/* Absent gives def, or an error when that is not positive. */
enum clime_err clime_key_positive(const struct cJSON *o, const char *key, double def, double *out,
                                  struct clime_error *e);
enum clime_err clime_key_bool(const struct cJSON *o, const char *key, bool def, bool *out, struct clime_error *e);
enum clime_err clime_key_str(const struct cJSON *o, const char *key, const char *def, const char **out,
                             struct clime_error *e);

#endif
