/* The description of an option table (see options.h): text for --help, tables for README.
 *
 * Called by options.c and by the generator of README's overview; owns nothing. Both forms come from the same rows, so
 * what the README says is what the program parses.
 */
#include <string.h>

#include "common/buf.h"
#include "common/options.h"

#define HELP_COLUMN 34
#define LINE_WIDTH 110

static const char *value_word(const struct clime_opt *o) {
    if (o->type == CLIME_OPT_BOOL) return "";
    if (o->type == CLIME_OPT_KEY) return "KEY";
    if (o->choices) return o->choices;
    switch (o->type) {
    case CLIME_OPT_INT:
        return "N";
    case CLIME_OPT_BYTES:
        return "SIZE";
    case CLIME_OPT_DOUBLE:
        return "X";
    default:
        return "TEXT";
    }
}

/* What the help line says of itself. */
static void put_ways(const struct clime_opt *o, struct clime_buf *out) {
    if (o->type == CLIME_OPT_KEY) clime_buf_printf(out, " (or --%s-file FILE, or $%s)", o->name, o->choices);
}

/* The default as --help shows it, or NULL when there is none worth showing. */
static const char *shown_default(const struct clime_opt *o) {
    if (!o->def) return NULL;
    if (o->type == CLIME_OPT_BOOL) return strcmp(o->def, "true") == 0 ? "on" : NULL;
    return o->def[0] ? o->def : NULL;
}

/* Words of text, broken at LINE_WIDTH and continued at HELP_COLUMN. column: where the line stands now. */
static void put_wrapped(struct clime_buf *out, const char *text, size_t column) {
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > LINE_WIDTH) {
            clime_buf_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            clime_buf_addc(out, ' ');
            column++;
        }
        clime_buf_add(out, text, word);
        column += word;
        text += word + strspn(text + word, " ");
    }
}

static void describe_text(const struct clime_opt *o, struct clime_buf *out) {
    struct clime_buf help;
    clime_buf_init(&help, 1 << 16);
    clime_buf_adds(&help, o->help ? o->help : "");
    put_ways(o, &help);
    if (shown_default(o)) clime_buf_printf(&help, " (default: %s)", shown_default(o));
    if (o->alias) clime_buf_printf(&help, " (also --%s)", o->alias);

    size_t start = out->len;
    clime_buf_printf(out, "  --%s", o->name);
    if (value_word(o)[0]) clime_buf_printf(out, " %s", value_word(o));
    if (o->type == CLIME_OPT_LIST) clime_buf_adds(out, " ...");
    if (out->len - start >= HELP_COLUMN) {
        clime_buf_addc(out, '\n');
        start = out->len;
    }
    clime_buf_printf(out, "%*s", (int)(HELP_COLUMN - (out->len - start)), "");
    put_wrapped(out, clime_buf_str(&help).ptr, HELP_COLUMN);
    clime_buf_addc(out, '\n');
    clime_buf_free(&help);
}

/* A '|' inside a cell would end it. */
static void put_cell(struct clime_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') clime_buf_addc(out, '\\');
        clime_buf_addc(out, *text);
    }
}

static void describe_row(const struct clime_opt *o, struct clime_buf *out) {
    clime_buf_printf(out, "| `--%s", o->name);
    if (value_word(o)[0]) clime_buf_addc(out, ' ');
    put_cell(out, value_word(o));
    clime_buf_adds(out, o->type == CLIME_OPT_LIST ? " ...` | " : "` | ");
    if (shown_default(o)) put_cell(out, shown_default(o));
    clime_buf_adds(out, " | ");
    put_cell(out, o->help ? o->help : "");
    put_ways(o, out);
    clime_buf_adds(out, " |\n");
}

void clime_options_describe(const struct clime_opt *table, int n, int markdown, struct clime_buf *out) {
    static const char head[] = "| option | default | meaning |\n| --- | --- | --- |\n";
    for (int i = 0; i < n; i++) {
        const struct clime_opt *o = &table[i];
        bool section = o->type == CLIME_OPT_SECTION;
        if (markdown) {
            if (section) clime_buf_printf(out, "%s**%s**\n\n", i ? "\n" : "", o->name);
            if (section || i == 0) clime_buf_adds(out, head);
            if (!section) describe_row(o, out);
        } else if (section) {
            clime_buf_printf(out, "%s%s\n", i ? "\n" : "", o->name);
        } else {
            describe_text(o, out);
        }
    }
}
