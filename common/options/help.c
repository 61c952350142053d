/* Option help (see options.h): text for --help, tables for docs/options/.
 *
 * Called by options.c; owns nothing. All forms are made from the rows that the parser uses.
 */
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/options/options.h"
#include "common/terminal.h"

#define HELP_COLUMN 34
#define LINE_WIDTH 110  /* less on a narrower terminal */
#define NARROW_WIDTH 64 /* on narrower terminals the help is below its option */
#define NARROW_COLUMN 6

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

/* Appends the other sources of a key. */
static void put_ways(const struct clime_opt *o, struct clime_buf *out) {
    if (o->type == CLIME_OPT_KEY) clime_buf_printf(out, " (or --%s-file FILE, or $%s)", o->name, o->choices);
}

/* The default for --help; NULL when not worth showing. */
static const char *shown_default(const struct clime_opt *o) {
    if (!o->def) return NULL;
    if (o->type == CLIME_OPT_BOOL) return strcmp(o->def, "true") == 0 ? "on" : NULL;
    return o->def[0] ? o->def : NULL;
}

static size_t line_width(void) {
    size_t columns = (size_t)clime_terminal_columns();
    return columns && columns < LINE_WIDTH ? columns : LINE_WIDTH;
}

/* Writes words, wrapped at the line's width with continuation at indent, the current column. */
static void put_wrapped(struct clime_buf *out, const char *text, size_t indent) {
    size_t column = indent, most = line_width();
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > indent && column + 1 + word > most) {
            clime_buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            clime_buf_addc(out, ' ');
            column++;
        }
        clime_buf_add(out, text, word);
        column += word;
        text += word + strspn(text + word, " ");
    }
}

void clime_options_usage(const char *usage, struct clime_buf *out) {
    while (*usage) {
        struct clime_buf line;
        size_t n = strcspn(usage, "\n");
        clime_buf_init(&line, 1 << 16);
        clime_buf_add(&line, usage, n);
        if (clime_terminal_columns() && n > line_width())
            put_wrapped(out, clime_buf_str(&line).ptr, 0);
        else
            clime_buf_add(out, usage, n);
        clime_buf_addc(out, '\n');
        clime_buf_free(&line);
        usage += n + (usage[n] == '\n');
    }
}

static void describe_text(const struct clime_opt *o, struct clime_buf *out) {
    struct clime_buf help;
    clime_buf_init(&help, 1 << 16);
    if (o->refused) clime_buf_adds(&help, "refused: ");
    clime_buf_adds(&help, o->help ? o->help : "");
    put_ways(o, &help);
    if (shown_default(o)) clime_buf_printf(&help, " (default: %s)", shown_default(o));
    if (o->alias) clime_buf_printf(&help, " (also --%s)", o->alias);

    size_t start = out->len;
    clime_buf_printf(out, "  --%s", o->name);
    if (value_word(o)[0]) clime_buf_printf(out, " %s", value_word(o));
    if (o->type == CLIME_OPT_LIST) clime_buf_adds(out, " ...");
    size_t column = line_width() < NARROW_WIDTH ? NARROW_COLUMN : HELP_COLUMN;
    if (column == NARROW_COLUMN || out->len - start >= column) {
        clime_buf_addc(out, '\n');
        start = out->len;
    }
    clime_buf_printf(out, "%*s", (int)(column - (out->len - start)), "");
    put_wrapped(out, clime_buf_str(&help).ptr, column);
    clime_buf_addc(out, '\n');
    clime_buf_free(&help);
}

/* Escapes '|', which would end the cell. */
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
    clime_buf_adds(out, o->refused ? " | refused: " : " | ");
    put_cell(out, o->help ? o->help : "");
    put_ways(o, out);
    if (o->alias) clime_buf_printf(out, " (also `--%s`)", o->alias);
    clime_buf_adds(out, " |\n");
}

static void put_heading(const struct clime_opt *section, struct clime_buf *out) {
    clime_buf_printf(out, "%s%s\n%s", out->len ? "\n" : "", section->name, section->help ? section->help : "");
}

void clime_options_describe(const struct clime_opt *table, int n, int markdown, struct clime_buf *out) {
    static const char head[] = "| option | default | meaning |\n| --- | --- | --- |\n";
    for (int i = 0; i < n; i++) {
        const struct clime_opt *o = &table[i];
        bool section = o->type == CLIME_OPT_SECTION;
        if (o->hidden) continue;
        if (markdown) {
            if (section) clime_buf_printf(out, "%s**%s**\n\n", i ? "\n" : "", o->name);
            if (section && o->help) clime_buf_adds(out, o->help);
            if (section ? !o->help : i == 0) clime_buf_adds(out, head);
            if (!section) describe_row(o, out);
        } else if (section) {
            put_heading(o, out);
        } else {
            describe_text(o, out);
        }
    }
}

/* ---- --help ---- */

static bool is_section(const struct clime_opt *o) {
    return o->type == CLIME_OPT_SECTION;
}

/* Writes the chosen rows under their headings; returns their number. */
static int describe_chosen(const struct clime_opt *table, int n, const bool *chosen, struct clime_buf *out) {
    const struct clime_opt *section = NULL;
    int n_shown = 0;
    for (int i = 0; i < n; i++) {
        if (is_section(&table[i])) section = &table[i];
        if (is_section(&table[i]) || !chosen[i]) continue;
        if (section) put_heading(section, out);
        section = NULL;
        describe_text(&table[i], out);
        n_shown++;
    }
    return n_shown;
}

/* "Prompts (9), Rollout (37), ..." */
static void put_groups(const struct clime_opt *table, int n, struct clime_buf *out) {
    bool any = false;
    for (int i = 0; i < n; i++) {
        int rows = 0;
        if (!is_section(&table[i]) || table[i].hidden || table[i].help) continue;
        while (i + rows + 1 < n && !is_section(&table[i + rows + 1])) rows++;
        clime_buf_printf(out, "%s%s (%d)", any ? ", " : "", table[i].name, rows);
        any = true;
    }
}

static enum clime_err help_of_word(const struct clime_opt *table, int n, const char *word, bool *chosen,
                                   struct clime_buf *out, struct clime_error *e) {
    bool in_group = false, any_group = false;
    for (int i = 0; i < n; i++) {
        if (is_section(&table[i])) in_group = strcasestr(table[i].name, word) != NULL;
        chosen[i] = in_group;
        any_group |= in_group;
    }
    for (int i = 0; i < n && !any_group; i++)
        chosen[i] = strcasestr(table[i].name, word) || (table[i].alias && strcasestr(table[i].alias, word));
    if (describe_chosen(table, n, chosen, out)) return CLIME_OK;
    put_groups(table, n, out);
    return clime_fail(e, CLIME_ERR_INPUT, "no group and no option has \"%.60s\" in its name; groups: %s", word,
                      clime_buf_str(out).ptr);
}

enum clime_err clime_options_help(const struct clime_opt *table, int n, const char *word, struct clime_buf *out,
                                  struct clime_error *e) {
    bool *chosen = xcalloc((size_t)n + 1, sizeof *chosen);
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < n; i++) chosen[i] = table[i].first;
    if (word) {
        rc = help_of_word(table, n, word + strspn(word, "-"), chosen, out, e);
    } else if (describe_chosen(table, n, chosen, out)) {
        struct clime_buf groups;
        clime_buf_init(&groups, 1 << 16);
        put_groups(table, n, &groups);
        clime_buf_addc(out, '\n');
        clime_options_usage("--help-all shows every option, --help WORD the group or option with WORD in its name:\n",
                            out);
        clime_buf_adds(out, "  ");
        put_wrapped(out, clime_buf_str(&groups).ptr, 2);
        clime_buf_addc(out, '\n');
        clime_buf_free(&groups);
    } else {
        clime_options_describe(table, n, 0, out);
    }
    free(chosen);
    return rc;
}
