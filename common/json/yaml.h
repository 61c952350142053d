/* YAML 1.1 as libyaml reads it, turned into JSON. The only door to libyaml. Any thread; no state.
 *
 * Anchors and aliases are resolved. Plain scalars are null (also ~ and nothing), true, false or a number where JSON
 * would read them as that, else text; whatever stands in quotes is text. Tags are not looked at, << is a name as any
 * other. A mapping that has a name twice is refused. */
#ifndef CLIME_COMMON_JSON_YAML_H
#define CLIME_COMMON_JSON_YAML_H

#include "common/buf.h"
#include "common/err.h"

/* Appends the one document of the text. CLIME_ERR_INPUT names the line; CLIME_ERR_LIMIT: deeper than JSON may be, or
 * past the buffer's cap, which bounds what aliases blow up. */
enum clime_err clime_yaml_to_json(struct clime_str text, struct clime_buf *out, struct clime_error *e);

#endif
