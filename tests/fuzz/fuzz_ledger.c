/* Fuzzes the ledger's file: truncated, flipped, pasted into, and opened again.
 *
 * A case is the whole file of a run with two groups of samples, one of them done. Invariants: it opens or is refused
 * with a message, and so is each question to it; a finished sample that can be read is the one that was written.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/runs.h"
#include "trainer/ledger/samples.h"
#include "trainer/ledger/steps.h"
#include "trainer/ledger/versions.h"

enum { GROUPS = 2, MEMBERS = 3, TOKENS = 40 };

static char dir[64], path[80];

static void remove_all(void) {
    static const char *const suffix[] = {"", "-wal", "-shm", "-journal"};
    char file[96];
    for (size_t i = 0; i < CLIME_COUNT(suffix); i++) {
        snprintf(file, sizeof file, "%s%s", path, suffix[i]);
        unlink(file);
    }
}

static int32_t token_of(const struct clime_sample *s, int i) {
    return (int32_t)(s->group * 1000 + s->member * 100 + i);
}

static void fill(struct clime_sample *s) {
    s->status = CLIME_SAMPLE_COMPLETED;
    s->n_response = TOKENS;
    s->ids = xrealloc(s->ids, (size_t)(s->n_prompt + TOKENS) * sizeof *s->ids);
    s->logp = xcalloc(TOKENS, sizeof *s->logp);
    s->mask = xcalloc(TOKENS, 1);
    for (int i = 0; i < TOKENS; i++) {
        s->ids[s->n_prompt + i] = token_of(s, i);
        s->logp[i] = -(float)i;
        s->mask[i] = 1;
    }
    s->versions = xcalloc(1, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){0, TOKENS};
    s->n_versions = 1;
    s->has_reward = true;
    s->reward = s->member;
}

static void check(const struct clime_sample *s) {
    if (s->status != CLIME_SAMPLE_COMPLETED) return;
    CHECK(s->n_response == TOKENS && s->has_reward && s->reward == s->member);
    for (int i = 0; i < TOKENS; i++)
        CHECK(s->ids[s->n_prompt + i] == token_of(s, i) && s->logp[i] == -(float)i && s->mask[i] == 1);
}

static void open_group(struct clime_ledger *l, int64_t id) {
    struct clime_sample *members[MEMBERS];
    struct clime_error e = {0};
    for (int m = 0; m < MEMBERS; m++) {
        struct clime_sample *s = members[m] = clime_sample_new();
        s->group = id;
        s->member = m;
        s->seed = (uint64_t)m;
        s->n_prompt = 2;
        s->ids = xcalloc(2, sizeof *s->ids);
    }
    const struct clime_group g = {.id = id, .line = id + 1, .prompt = "?", .members = members, .n = MEMBERS};
    CHECK(clime_groups_open(l, &g, 1, &e) == CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) clime_sample_free(members[m]);
}

static void finish_group(struct clime_ledger *l, const struct clime_run *run) {
    struct clime_sample **s;
    struct clime_error e = {0};
    int n;
    CHECK(clime_samples_open(clime_ledger_reader(l), &s, &n, &e) == CLIME_OK && n == MEMBERS);
    for (int i = 0; i < n; i++) {
        struct clime_lease lease = {.sample = s[i]};
        CHECK(clime_leases_take(l, &lease, 1, run->incarnation, clime_wall_us() + 1000000, &e) == CLIME_OK);
        fill(s[i]);
        CHECK(clime_leases_finish(l, &lease, 1, run->incarnation, &e) == CLIME_OK && !lease.lost);
    }
    clime_samples_free(s, n);
}

static enum clime_err begin(struct clime_ledger **l, struct clime_run *run, struct clime_error *e) {
    enum clime_err err = clime_ledger_open(path, l, e);
    if (err) return err;
    if ((err = clime_run_begin(*l, "r", 42, "{}", run, e))) clime_ledger_close(*l);
    return err;
}

static void make_file(struct clime_buf *out) {
    struct clime_ledger *l;
    struct clime_run run;
    struct clime_error e = {0};
    CHECK(begin(&l, &run, &e) == CLIME_OK);
    open_group(l, 0);
    finish_group(l, &run);
    open_group(l, 1);
    CHECK(clime_version_put(l, 0, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", &e) == CLIME_OK);
    CHECK(clime_checkpoint_put(l, 2, "checkpoints/step_00000002", 7, &e) == CLIME_OK);
    clime_run_free(&run);
    clime_ledger_close(l);
    CHECK(clime_buf_read_file(out, path, &e) == CLIME_OK);
}

static void read_all(struct clime_ledger *l) {
    struct clime_sample **s;
    struct clime_checkpoint c;
    struct clime_error e = {0};
    int64_t next;
    int n;
    struct clime_db *db = clime_ledger_reader(l);
    if (clime_samples_open(db, &s, &n, &e)) {
        CHECK(e.code && e.msg[0]);
    } else {
        for (int i = 0; i < n; i++) check(s[i]);
        clime_samples_free(s, n);
    }
    CHECK(!clime_groups_next(db, &next, &e) || e.msg[0]);
    if (clime_checkpoint_newest(db, INT64_MAX, &c, &e))
        CHECK(e.msg[0]);
    else
        clime_checkpoint_free(&c);
}

static void target(const char *data, size_t len) {
    struct clime_ledger *l;
    struct clime_run run;
    struct clime_error e = {0};
    remove_all();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
    if (begin(&l, &run, &e)) {
        CHECK(e.code && e.msg[0]);
        return;
    }
    read_all(l);
    clime_run_free(&run);
    clime_ledger_close(l);
}

int main(int argc, char **argv) {
    static const char *const words[] = {"ffff", "SQLite format 3", "completed", "pending", "CREATE TABLE", NULL};
    struct clime_buf file;
    clime_log_open("fuzz", CLIME_LOG_ERROR);
    fuzz_folder(dir);
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    clime_buf_init(&file, (size_t)1 << 24);
    make_file(&file);
    const struct clime_str seeds[] = {clime_buf_str(&file)};
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = 1,
                           .words = words,
                           .max_bytes = file.len + 8192,
                           .iterations = 1500,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    remove_all();
    rmdir(dir);
    clime_buf_free(&file);
    return status;
}
