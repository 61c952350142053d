/* JSON as a tree (see tree.h); the only file that includes cJSON.
 *
 * Called for configuration files and small sub-trees, on any thread; the caller owns the root. Invariant: cJSON only
 * gets text that the strict scanner accepted, so it fails only when out of memory. "\u0000" is refused too: cJSON's
 * strings end at the first NUL, which would silently truncate a value.
 */
#include "common/json/tree.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "common/buf.h"

/* In valid JSON a backslash occurs only in strings, and escapes the next character. */
static const char *find_nul_escape(const char *text, size_t len) {
    for (size_t i = 0; i + 1 < len; i++) {
        if (text[i] != '\\') continue;
        if (len - i >= 6 && memcmp(text + i + 1, "u0000", 5) == 0) return text + i;
        i++;
    }
    return NULL;
}

enum clime_err clime_tree_parse(const char *text, size_t len, struct cJSON **out, struct clime_error *e) {
    *out = NULL;
    struct clime_error unread, *err = e ? e : &unread;
    if (!clime_json_check(text, len, err)) return err->code;
    const char *nul = find_nul_escape(text, len);
    if (nul)
        return clime_fail(err, CLIME_ERR_INPUT, "JSON at byte %zu: \\u0000 is not supported", (size_t)(nul - text));
    *out = cJSON_ParseWithLength(text, len);
    return *out ? CLIME_OK : clime_fail(err, CLIME_ERR_INTERNAL, "cJSON refused a valid document");
}

enum clime_err clime_tree_read_file(const char *path, size_t max_bytes, struct cJSON **out, struct clime_error *e) {
    struct clime_buf b;
    clime_buf_init(&b, max_bytes);
    *out = NULL;
    enum clime_err rc = clime_buf_read_file(&b, path, e);
    if (rc == CLIME_OK) {
        rc = clime_tree_parse(clime_buf_str(&b).ptr, b.len, out, e);
        if (rc != CLIME_OK && e) clime_error_prefix(e, "%s", path);
    }
    clime_buf_free(&b);
    return rc;
}

void clime_tree_free(struct cJSON *root) {
    cJSON_Delete(root);
}

enum clime_json_kind clime_tree_kind(const struct cJSON *n) {
    if (cJSON_IsObject(n)) return CLIME_JSON_OBJECT;
    if (cJSON_IsArray(n)) return CLIME_JSON_ARRAY;
    if (cJSON_IsString(n)) return CLIME_JSON_STRING;
    if (cJSON_IsNumber(n)) return CLIME_JSON_NUMBER;
    if (cJSON_IsBool(n)) return CLIME_JSON_BOOL;
    return cJSON_IsNull(n) ? CLIME_JSON_NULL : CLIME_JSON_ERROR;
}

const struct cJSON *clime_tree_get(const struct cJSON *object, const char *key) {
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
}

const struct cJSON *clime_tree_first(const struct cJSON *container) {
    return container ? container->child : NULL;
}

const struct cJSON *clime_tree_next(const struct cJSON *child) {
    return child ? child->next : NULL;
}

const char *clime_tree_key(const struct cJSON *child) {
    return child ? child->string : NULL;
}

int clime_tree_size(const struct cJSON *container) {
    return container ? cJSON_GetArraySize(container) : 0;
}

const char *clime_tree_str(const struct cJSON *n, const char *fallback) {
    return cJSON_IsString(n) ? n->valuestring : fallback;
}

double clime_tree_num(const struct cJSON *n, double fallback) {
    return cJSON_IsNumber(n) ? n->valuedouble : fallback;
}

bool clime_tree_bool(const struct cJSON *n, bool fallback) {
    return cJSON_IsBool(n) ? cJSON_IsTrue(n) : fallback;
}
