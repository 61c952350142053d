/* Version labels of weights (label.h). Called by the fleet, which labels weights, and by readers of answers. */
#include "trainer/sample/label.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST_DIGITS 18
#define CUT "..."

void clime_label_write(char out[CLIME_VERSION_LABEL], int64_t version, const char *run) {
    snprintf(out, CLIME_VERSION_LABEL, "%" PRId64 "@%s", version, run);
}

/* Number of digits of the label's version; 0: it does not begin with one. */
static size_t digits_of(struct clime_str label) {
    size_t n = 0;
    while (n < label.len && label.ptr[n] >= '0' && label.ptr[n] <= '9') n++;
    bool is_number = n > 0 && n <= MOST_DIGITS && (n == 1 || label.ptr[0] != '0');
    return is_number && n < label.len && label.ptr[n] == '@' ? n : 0;
}

struct clime_str clime_label_run(struct clime_str label) {
    size_t n = digits_of(label);
    return n ? (struct clime_str){label.ptr + n + 1, label.len - n - 1} : (struct clime_str){"", 0};
}

struct clime_str clime_label_name(struct clime_str run) {
    size_t n = 0;
    while (n < run.len && run.ptr[n] != '.') n++;
    return (struct clime_str){run.ptr, n};
}

void clime_label_copy(char out[CLIME_VERSION_LABEL], struct clime_str label) {
    const size_t most = CLIME_VERSION_LABEL - 1;
    size_t n = label.len;
    if (n > most)
        for (n = most - strlen(CUT); n > 0 && ((unsigned char)label.ptr[n] & 0xc0) == 0x80;) n--; /* whole characters */
    snprintf(out, CLIME_VERSION_LABEL, CLIME_STR_FMT "%s", (int)n, label.ptr, label.len > most ? CUT : "");
}

int64_t clime_label_version(struct clime_str label, struct clime_str run) {
    struct clime_str is = clime_label_run(label);
    int64_t version = 0;
    if (!digits_of(label) || is.len != run.len || memcmp(is.ptr, run.ptr, run.len)) return -1;
    for (size_t i = 0; i < digits_of(label); i++) version = 10 * version + (label.ptr[i] - '0');
    return version;
}
