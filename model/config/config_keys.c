/* Typed access to config.json's fields. Called by config.c and its families while a model is opened; pure. Invariant: a
 * field of another type, or outside its range, is an error that names it, never treated as absent.
 */
#include "model/config/config_keys.h"

#include <math.h>

bool clime_key_absent(const struct cJSON *n) {
    enum clime_json_kind k = clime_tree_kind(n);
    return k == CLIME_JSON_ERROR || k == CLIME_JSON_NULL;
}

enum clime_err clime_key_int(const struct cJSON *o, const char *key, int min, int max, int def, int *out,
                             struct clime_error *e) {
    const struct cJSON *n = clime_tree_get(o, key);
    if (clime_key_absent(n)) {
        if (def < min) return clime_fail(e, CLIME_ERR_INPUT, "%s is missing", key);
        *out = def;
        return CLIME_OK;
    }
    double v = clime_tree_kind(n) == CLIME_JSON_NUMBER ? clime_tree_num(n, -1) : NAN;
    if (!(v >= min && v <= max) || v != floor(v))
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be an integer from %d to %d", key, min, max);
    *out = (int)v;
    return CLIME_OK;
}

enum clime_err clime_key_positive(const struct cJSON *o, const char *key, double def, double *out,
                                  struct clime_error *e) {
    const struct cJSON *n = clime_tree_get(o, key);
    *out = def;
    if (clime_key_absent(n)) {
        if (!(def > 0)) return clime_fail(e, CLIME_ERR_INPUT, "%s is missing", key);
        return CLIME_OK;
    }
    double v = clime_tree_kind(n) == CLIME_JSON_NUMBER ? clime_tree_num(n, -1) : -1;
    if (!((float)v > 0) || !isfinite((float)v))
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be a positive number within fp32's range", key);
    *out = v;
    return CLIME_OK;
}

enum clime_err clime_key_bool(const struct cJSON *o, const char *key, bool def, bool *out, struct clime_error *e) {
    const struct cJSON *n = clime_tree_get(o, key);
    if (!clime_key_absent(n) && clime_tree_kind(n) != CLIME_JSON_BOOL)
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be true or false", key);
    *out = clime_tree_bool(n, def);
    return CLIME_OK;
}

enum clime_err clime_key_str(const struct cJSON *o, const char *key, const char *def, const char **out,
                             struct clime_error *e) {
    const struct cJSON *n = clime_tree_get(o, key);
    if (!clime_key_absent(n) && clime_tree_kind(n) != CLIME_JSON_STRING)
        return clime_fail(e, CLIME_ERR_INPUT, "%s must be a string", key);
    *out = clime_tree_str(n, def);
    return CLIME_OK;
}
