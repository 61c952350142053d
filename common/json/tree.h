/* A JSON document as a tree, for configuration files and small sub-trees. Wraps cJSON (only tree.c includes it).
 *
 * Not for hot paths (64 bytes a node) and not for integers above 2^53. The strict scanner checks depth, UTF-8 and
 * trailing bytes before cJSON parses. Look-up is case-sensitive. A node is borrowed from its tree.
 */
#ifndef CLIME_COMMON_JSON_TREE_H
#define CLIME_COMMON_JSON_TREE_H

#include <stdint.h>

#include "common/err.h"
#include "common/json/scan.h"

struct cJSON; /* a node; opaque */

enum clime_err clime_tree_parse(const char *text, size_t len, struct cJSON **out, struct clime_error *e);
enum clime_err clime_tree_read_file(const char *path, size_t max_bytes, struct cJSON **out, struct clime_error *e);
void clime_tree_free(struct cJSON *root); /* NULL is fine */

enum clime_json_kind clime_tree_kind(const struct cJSON *n);                     /* CLIME_JSON_ERROR for NULL */
const struct cJSON *clime_tree_get(const struct cJSON *object, const char *key); /* NULL when absent or no object */
const struct cJSON *clime_tree_first(const struct cJSON *container);             /* first child, or NULL */
const struct cJSON *clime_tree_next(const struct cJSON *child);
const char *clime_tree_key(const struct cJSON *child); /* member name inside an object, else NULL */
int clime_tree_size(const struct cJSON *container);    /* walks the list: O(n) */

/* Value with a fall-back when absent or of another kind. */
const char *clime_tree_str(const struct cJSON *n, const char *fallback);
double clime_tree_num(const struct cJSON *n, double fallback);
bool clime_tree_bool(const struct cJSON *n, bool fallback);

#endif
