/* The tools of a request: their names, and which types each parameter may have.
 *
 * Formats that write arguments as tags ("<parameter=n>5</parameter>") do not distinguish the number 5 from a text; the
 * tool's schema does. Read once per request, then constant; in the arena; names point into it or the JSON.
 */
#ifndef CLIME_TEXT_OUTPUT_TOOLS_H
#define CLIME_TEXT_OUTPUT_TOOLS_H

#include "common/buf.h"
#include "common/json/scan.h"

#define CLIME_MAX_CALL_NAME 256 /* bytes */

/* Types of JSON schema as bits. */
enum clime_tool_type {
    CLIME_TYPE_NULL = 1,
    CLIME_TYPE_INTEGER = 2,
    CLIME_TYPE_NUMBER = 4,
    CLIME_TYPE_BOOLEAN = 8,
    CLIME_TYPE_OBJECT = 16,
    CLIME_TYPE_ARRAY = 32,
    CLIME_TYPE_STRING = 64,
    CLIME_TYPE_OTHER = 128, /* an unknown type name: any JSON value, else a string */
};

struct clime_tool_param {
    struct clime_str name;
    unsigned types;
};

struct clime_tool {
    struct clime_str name;
    const struct clime_tool_param *params;
    int n_params;
    bool strict; /* arguments must match its schema */
};

struct clime_tools {
    const struct clime_tool *at;
    int n;
};

/* True if a call of that name is recognizable: no white space, quotes, backslashes or brackets. */
bool clime_tool_name_fits(struct clime_str name);

/* Reads the value of `tools`: a list of {"type": "function", "function": {"name", "parameters"}}, or of the inner
 * objects. CLIME_ERR_INPUT names the error. */
enum clime_err clime_tools_read(struct clime_str json, struct clime_arena *a, struct clime_tools *out,
                                struct clime_error *e);

const struct clime_tool *clime_tools_find(const struct clime_tools *t, struct clime_str name);

/* The parameter's types in the tool's schema; 0 = unknown. t may be NULL. */
unsigned clime_tools_types(const struct clime_tools *t, struct clime_str tool, struct clime_str param);

/* The bit of a schema's type name, including other vendors' aliases. */
unsigned clime_schema_type(struct clime_str name);

/* Appends the text as a JSON value of the first type that it fits, tried as null, integer, number, boolean, object,
 * array, string: vLLM's rule. A text that fits none is a string, and so is a value JSON cannot express (1e999). */
void clime_tool_value(struct clime_str text, unsigned types, struct clime_buf *out);

/* Appends the text escaped for a JSON string. The text may end within a character. */
void clime_json_escape(struct clime_buf *out, struct clime_str text);

#endif
