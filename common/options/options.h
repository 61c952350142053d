/* Command-line options from one table: parsing, checks, --help, and the generated docs/options/.
 *
 * A program lists its options once; a row has its name, the address of its value, its default as text (parsed like a
 * user's value), its unit or choices, and one line of help. An option not in the table is an error that names the
 * nearest one. "--name value" and "--name=value" both work; a bool takes no value ("--no-name" clears).
 */
#ifndef CLIME_COMMON_OPTIONS_OPTIONS_H
#define CLIME_COMMON_OPTIONS_OPTIONS_H

#include "common/err.h"

enum clime_opt_type {
    CLIME_OPT_BOOL,   /* bool * */
    CLIME_OPT_INT,    /* int64_t *; accepts 1_000 */
    CLIME_OPT_BYTES,  /* int64_t *; suffixes k, m, g, t in steps of 1024: 512m, 2g */
    CLIME_OPT_DOUBLE, /* double * */
    CLIME_OPT_STRING, /* const char **; points into argv or the default */
    CLIME_OPT_CHOICE, /* int *; index into choices "a|b|c" */
    CLIME_OPT_KEY,    /* const char **; a secret: from --name KEY, from the file of --name-file FILE, or from the
                       * environment variable that `choices` names. Never freed */
    CLIME_OPT_LIST,   /* struct clime_opt_list *; one or more values up to the next option; may repeat; no default */
    CLIME_OPT_SECTION /* no value; name is a heading in --help, with help (or NULL) below it */
};

struct clime_opt_list {
    const char **items; /* allocated by the parser and never freed; the words are argv's */
    int n;
};

struct clime_opt {
    const char *name; /* without dashes */
    enum clime_opt_type type;
    void *value;
    const char *def;     /* default as text; NULL = none (0, NULL, empty) */
    const char *choices; /* CLIME_OPT_CHOICE: "a|b|c"; others: the word shown in --help, such as "N" or "DIR" */
    const char *help;
    double min, max;   /* for numbers; both 0 = unbounded, max < min = only a lower bound */
    const char *alias; /* another accepted name, older or a peer's, or NULL */
    bool *given;       /* set true when the user set the option, or NULL */
    bool first;        /* for a first run: --help shows only such rows, if any */
    bool refused;      /* another program's option, always an error; help is the reason */
    bool hidden;       /* another program's option or section, shown by --help WORD only */
};

/* Sets every default, then parses argv[1..argc). positional receives up to max_positional words that belong to no
 * option, NULL-padded; more are an error. After "--" every word is positional. The last of repeated values wins. Prints
 * and exits 0 (the only exit in common/) on --help or -h (usage, and the rows marked `first`, or all when none is),
 * --help WORD (the groups, or else the options, whose name contains WORD), --help-all (every row that is not hidden),
 * --help-markdown (the program's part of docs/options/, for scripts/docs), --version (the first word of usage, and
 * CLIME_VERSION). */
enum clime_err clime_options_parse(const struct clime_opt *table, int n, int argc, char **argv, const char **positional,
                                   int max_positional, const char *usage, struct clime_error *e);

/* Writes the help text of the whole table; markdown != 0 writes tables for docs/options/. */
struct clime_buf;
void clime_options_describe(const struct clime_opt *table, int n, int markdown, struct clime_buf *out);

/* Writes usage lines, wrapped to the terminal's width. */
void clime_options_usage(const char *usage, struct clime_buf *out);

/* Writes --help: word NULL = the first rows and the groups' names. CLIME_ERR_INPUT: no group or option name contains
 * the word. */
enum clime_err clime_options_help(const struct clime_opt *table, int n, const char *word, struct clime_buf *out,
                                  struct clime_error *e);

#endif
