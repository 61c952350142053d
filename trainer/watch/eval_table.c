/* Evaluation table from lines of metrics of kind eval. Called by the report, main thread. A figure NAME with NAME-ci95
 * is shown with its interval; the best of a column gets a star. */
#include "trainer/watch/eval_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/tree.h"
#include "trainer/ledger/metrics.h"

#define ACROSS 4 /* columns of a block: 80 characters */

struct cell {
    double value, ci95; /* ci95 < 0: none */
    bool there;
};

struct row {
    int64_t step;
    struct cell *cells; /* [n] of the columns known then */
    int n;
};

struct table {
    char **columns; /* without "eval/" */
    int n_columns, n_rows;
    struct row *rows;
};

static int column_of(struct table *t, const char *name) {
    for (int i = 0; i < t->n_columns; i++)
        if (!strcmp(t->columns[i], name)) return i;
    t->columns = xrealloc(t->columns, (size_t)(t->n_columns + 1) * sizeof *t->columns);
    t->columns[t->n_columns] = xstrdup(name);
    return t->n_columns++;
}

/* "eval/SET" and "eval/SET-pass@k", not the figures beside them: lengths, truncation, failures, the step. */
static bool is_score(const struct cJSON *line, const char *key) {
    static const char *const others[] = {"-ci95", "-truncated_ratio", "-failed"};
    size_t n = strlen(key);
    if (strncmp(key, "eval/", 5) || strchr(key + 5, '/') || !strcmp(key, "eval/step")) return false;
    for (size_t i = 0; i < CLIME_COUNT(others); i++) {
        size_t k = strlen(others[i]);
        if (n <= k || strcmp(key + n - k, others[i])) continue;
        char *set = xstrndup(key, n - k); /* a set's own name may end so */
        bool beside = clime_tree_get(line, set) != NULL;
        free(set);
        if (beside) return false;
    }
    return true;
}

static void add_line(void *arg, const char *text) {
    struct table *t = arg;
    struct cJSON *line = NULL;
    struct clime_error e;
    if (clime_tree_parse(text, strlen(text), &line, &e)) return;
    if (strcmp(clime_tree_str(clime_tree_get(line, "kind"), ""), "eval") != 0) goto done;
    t->rows = xrealloc(t->rows, (size_t)(t->n_rows + 1) * sizeof *t->rows);
    struct row *r = &t->rows[t->n_rows++];
    *r = (struct row){.step = (int64_t)clime_tree_num(clime_tree_get(line, "eval/step"), 0)};
    for (const struct cJSON *x = clime_tree_first(line); x; x = clime_tree_next(x)) {
        if (!is_score(line, clime_tree_key(x)) || clime_tree_kind(x) != CLIME_JSON_NUMBER) continue;
        int c = column_of(t, clime_tree_key(x) + 5);
        char *ci = xasprintf("%s-ci95", clime_tree_key(x));
        for (; r->n <= c; r->n++) {
            r->cells = xrealloc(r->cells, (size_t)(r->n + 1) * sizeof *r->cells);
            r->cells[r->n] = (struct cell){0};
        }
        r->cells[c] = (struct cell){clime_tree_num(x, 0), clime_tree_num(clime_tree_get(line, ci), -1), true};
        free(ci);
    }
done:
    clime_tree_free(line);
}

static bool is_best(const struct table *t, int row, int column) {
    for (int i = 0; i < t->n_rows; i++) {
        if (column >= t->rows[i].n || !t->rows[i].cells[column].there) continue;
        double other = t->rows[i].cells[column].value, own = t->rows[row].cells[column].value;
        if (other > own || (other == own && i < row)) return false;
    }
    return t->n_rows > 1;
}

static void print_block(const struct table *t, int from, int to) {
    printf("  %-8s", "step");
    for (int c = from; c < to; c++) printf("  %-16.16s", t->columns[c]);
    printf("\n");
    for (int i = 0; i < t->n_rows; i++) {
        printf("  %-8" PRId64, t->rows[i].step);
        for (int c = from; c < to; c++) {
            char text[48] = "-";
            const struct cell *x = c < t->rows[i].n && t->rows[i].cells[c].there ? &t->rows[i].cells[c] : NULL;
            const char *star = x && is_best(t, i, c) ? "*" : "";
            if (x && x->ci95 >= 0)
                snprintf(text, sizeof text, "%.4f +-%.3f%s", x->value, x->ci95, star);
            else if (x)
                snprintf(text, sizeof text, "%.4f%s", x->value, star);
            printf("  %-16s", text);
        }
        printf("\n");
    }
}

enum clime_err clime_eval_table_print(struct clime_db *db, struct clime_error *e) {
    struct table t = {0};
    enum clime_err rc = clime_metrics_each(db, INT64_MAX, add_line, &t, e);
    if (!rc && t.n_columns) printf("\nevaluations: mean and half of its 95 %% interval; * is the best of its column\n");
    for (int c = 0; c < t.n_columns && !rc; c += ACROSS)
        print_block(&t, c, c + ACROSS < t.n_columns ? c + ACROSS : t.n_columns);
    for (int i = 0; i < t.n_columns; i++) free(t.columns[i]);
    for (int i = 0; i < t.n_rows; i++) free(t.rows[i].cells);
    free(t.columns);
    free(t.rows);
    return rc;
}
