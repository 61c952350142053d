/* Build tool: openapi-embed FILE.yaml NAME writes to standard output the C source of clime_openapi_NAME, the document
 * as JSON (openapi.h). Main thread only. Exit status 1 and one line for invalid YAML.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/json/yaml.h"

#define MAX_BYTES ((size_t)16 << 20)
#define LINE 1000 /* document bytes per line of the source */

static enum clime_err read_file(const char *path, struct clime_buf *out, struct clime_error *e) {
    char piece[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) return clime_fail(e, CLIME_ERR_IO, "cannot read it");
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) clime_buf_add(out, piece, n);
    bool bad = ferror(f) || out->full;
    fclose(f);
    return bad ? clime_fail(e, CLIME_ERR_IO, "cannot read it whole") : CLIME_OK;
}

/* Other bytes than printable ASCII are octal escapes, always of three digits, so a following digit is not part of
 * it. */
static void write_source(const struct clime_buf *json, const char *name) {
    printf("#include \"common/http/openapi.h\"\nconst struct clime_str clime_openapi_%s = {\n", name);
    for (size_t i = 0; i < json->len; i++) {
        unsigned char c = (unsigned char)json->data[i];
        if (i % LINE == 0) printf("%s\"", i ? "\"\n" : "");
        if (c == '"' || c == '\\' || c == '?' || c < ' ' || c > '~')
            printf("\\%03o", c);
        else
            putchar(c);
    }
    printf("\",\n%zu};\n", json->len);
}

int main(int argc, char **argv) {
    struct clime_buf text, json;
    struct clime_error e = {0};
    if (argc != 3) {
        fprintf(stderr, "openapi-embed FILE.yaml NAME\n");
        return 2;
    }
    clime_buf_init(&text, MAX_BYTES);
    clime_buf_init(&json, MAX_BYTES);
    if (!read_file(argv[1], &text, &e) && !clime_yaml_to_json(clime_buf_str(&text), &json, &e))
        write_source(&json, argv[2]);
    else
        fprintf(stderr, "%s: %s\n", argv[1], e.msg);
    clime_buf_free(&text);
    clime_buf_free(&json);
    return e.code || fflush(stdout) ? 1 : 0;
}
