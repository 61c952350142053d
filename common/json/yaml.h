/* YAML 1.1 to JSON, by libyaml (only yaml.c includes it). Any thread; no state.
 *
 * Anchors and aliases are resolved. Plain scalars are null (also ~ and empty), true, false or a number where JSON has
 * such a value, else strings; quoted scalars are strings. Tags are ignored, and << is an ordinary name. A duplicate
 * name in a mapping is an error. */
#ifndef CLIME_COMMON_JSON_YAML_H
#define CLIME_COMMON_JSON_YAML_H

#include "common/buf.h"
#include "common/err.h"

/* Appends the text's single document. CLIME_ERR_INPUT names the line; CLIME_ERR_LIMIT: deeper than JSON allows, or past
 * the buffer's cap, which bounds the expansion of aliases. */
enum clime_err clime_yaml_to_json(struct clime_str text, struct clime_buf *out, struct clime_error *e);

#endif
