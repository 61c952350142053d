/* Command-line options from one table: parsing, checks, --help, and the generated docs/options/.
 *
 * A program lists its options once; the table names the option, where its value goes, its default as text (parsed
 * at start like a user's value), its unit or choices, and one line of help. Anything not in the table is an error
 * that names the nearest option. "--name value" and "--name=value" both work; a bool takes none ("--no-name" clears).
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
                       * environment variable that `choices` names. It stays until the program ends */
    CLIME_OPT_LIST,   /* struct clime_opt_list *; one or more values up to the next option; may repeat; no default */
    CLIME_OPT_SECTION /* no value; name is a heading in --help, help (or NULL) text below it */
};

struct clime_opt_list {
    const char **items; /* grown by the parser, which never frees it; the words are argv's */
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
    const char *alias; /* an older or peer's name accepted silently, or NULL */
    bool *given;       /* set true when the user gave it, or NULL */
    bool first;        /* of a first run: where a table has such rows, --help shows only them */
    bool refused;      /* another program's, an error whatever its value; help is the reason */
    bool hidden;       /* another program's, of which only --help WORD tells; also of a section */
};

/* Sets every default, then parses argv[1..argc). positional: receives up to max_positional words that belong to no
 * option, the rest of it is set to NULL; more words are an error. After "--" every word is positional. A value given
 * twice: the last one holds. Prints and exits 0 (the only exit in common/): on "--help" or "-h" usage and the table,
 * its first rows where some are marked; on "--help WORD" the groups, or else the options, with the word in their names;
 * on "--help-all" every row that is not hidden; on "--help-markdown" the part of docs/options/ (scripts/docs); on
 * "--version" the program, which is the first word of usage, and CLIME_VERSION. */
enum clime_err clime_options_parse(const struct clime_opt *table, int n, int argc, char **argv, const char **positional,
                                   int max_positional, const char *usage, struct clime_error *e);

/* Writes the help text of the whole table; markdown != 0 writes tables for docs/options/. */
struct clime_buf;
void clime_options_describe(const struct clime_opt *table, int n, int markdown, struct clime_buf *out);

/* Writes lines of a usage, those that a terminal is too narrow for on several. */
void clime_options_usage(const char *usage, struct clime_buf *out);

/* Writes what --help shows: word NULL = the first rows and the names of the groups. CLIME_ERR_INPUT when no group and
 * no option has the word in its name. */
enum clime_err clime_options_help(const struct clime_opt *table, int n, const char *word, struct clime_buf *out,
                                  struct clime_error *e);

#endif
