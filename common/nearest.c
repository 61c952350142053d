/* Levenshtein distance, one row at a time. Called for an unknown name; owns nothing. */
#include "common/nearest.h"

#include <string.h>

#define MAX_BYTES 64

static int distance(struct clime_str a, const char *b) {
    int row[MAX_BYTES + 1], n_a = a.len < MAX_BYTES ? (int)a.len : MAX_BYTES;
    for (int i = 0; i <= n_a; i++) row[i] = i;
    for (int j = 1; b[j - 1]; j++) {
        int corner = row[0];
        row[0] = j;
        for (int i = 1; i <= n_a; i++) {
            int replace = corner + (a.ptr[i - 1] != b[j - 1]);
            int shift = (row[i] < row[i - 1] ? row[i] : row[i - 1]) + 1;
            corner = row[i];
            row[i] = replace < shift ? replace : shift;
        }
    }
    return row[n_a];
}

void clime_nearest_try(struct clime_nearest *n, const char *candidate) {
    int d = distance(n->word, candidate), longer = (int)(n->word.len < MAX_BYTES ? n->word.len : MAX_BYTES);
    if (longer < (int)strlen(candidate)) longer = (int)strlen(candidate);
    if (2 * d > longer || (n->best && d >= n->distance)) return;
    n->best = candidate;
    n->distance = d;
}
