/* Fuzzes a checkpoint's folder: files truncated, flipped, pasted into, missing, and loaded.
 *
 * A case is one file: its first byte says which one of the folder, the rest is what lies there (nothing: no file).
 * Invariants: a file whose bytes are not those that were written is found by the checksums, ledger's or manifest's;
 * with a manifest that speaks for it, it is loaded, and then saved again as it is, or refused with a message, and a
 * refusal leaves the learner as it was.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "trainer/learn/learner.h"
#include "trainer/learn/manifest.h"

enum { STATE, MASTER, FILES = 4 };

static const char *const names[FILES] = {"state.json", "master.f32", "moment1.f32", "moment2.f32"};

static char root[64], sound[80], tried[80], again[80];
static struct clime_buf files[FILES]; /* of the sound folder, each after its number */
static uint64_t sums[FILES];
static struct clime_learner *learner;
static char weights[65];

static char *path_of(const char *dir, int i) {
    return xasprintf("%s/%s", dir, names[i]);
}

static void put(int i, const char *data, size_t len) {
    char *path = path_of(tried, i);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, len, f) == len && fclose(f) == 0);
    free(path);
}

static void put_sound(int i) {
    put(i, files[i].data + 1, files[i].len - 1);
}

static bool sum_of(const char *dir, int i, uint64_t *sum) {
    struct clime_error e = {0};
    char *path = path_of(dir, i);
    enum clime_err err = clime_file_checksum(path, sum, &e);
    CHECK(!err || e.msg[0]);
    free(path);
    return !err;
}

static bool is_loaded(void) {
    struct clime_error e = {0};
    enum clime_err err = clime_learner_load(learner, tried, &e);
    CHECK(!err || (e.code == err && err != CLIME_ERR_INTERNAL && e.msg[0]));
    return !err;
}

static void check_weights(void) {
    struct clime_error e;
    char now[65];
    CHECK(clime_learner_sha256(learner, now, &e) == CLIME_OK && strcmp(now, weights) == 0);
}

/* The manifest says of file i what lies there now. */
static void speak_for(int i, uint64_t sum) {
    char was[17], is[17], *text = xmalloc(files[STATE].len);
    snprintf(was, sizeof was, "%016llx", (unsigned long long)sums[i]);
    snprintf(is, sizeof is, "%016llx", (unsigned long long)sum);
    memcpy(text, files[STATE].data + 1, files[STATE].len - 1);
    text[files[STATE].len - 1] = '\0';
    char *at = strstr(text, was);
    CHECK(at);
    memcpy(at, is, 16);
    put(STATE, text, files[STATE].len - 1);
    free(text);
}

/* What was loaded is what is saved: every array, bit for bit, and a state that says the same of itself. */
static void check_round(void) {
    struct clime_error e;
    CHECK(clime_learner_save(learner, again, &e) == CLIME_OK);
    for (int i = MASTER; i < FILES; i++) {
        uint64_t a, b;
        CHECK(sum_of(tried, i, &a) && sum_of(again, i, &b) && a == b);
    }
    CHECK(clime_learner_load(learner, again, &e) == CLIME_OK);
    CHECK(clime_learner_load(learner, sound, &e) == CLIME_OK);
}

static void target(const char *data, size_t len) {
    int i = len ? (unsigned char)data[0] % FILES : 0;
    uint64_t sum;
    if (len > 1) {
        put(i, data + 1, len - 1);
    } else {
        char *path = path_of(tried, i);
        unlink(path);
        free(path);
    }
    bool there = sum_of(tried, i, &sum), changed = !there || sum != sums[i];
    if (i != STATE && changed) {
        CHECK(!is_loaded());
        check_weights();
        if (there) speak_for(i, sum);
    }
    if (is_loaded()) check_round();
    check_weights();
    put_sound(i);
    put_sound(STATE);
}

static void open_learner(void) {
    const char *golden = getenv("CLIME_GOLDEN");
    char *dir = xasprintf("%s/qwen2", golden ? golden : "tests/golden");
    const struct clime_learner_options o = {.hf_checkpoint = dir,
                                            .model = {.device = "cpu", .dtype = "bf16", .dev = {.n_threads = 1}},
                                            .max_tokens_per_gpu = 32,
                                            .max_seq_len = 16,
                                            .objective.sft = true,
                                            .lr = 1e-2,
                                            .adam_beta1 = 0.9,
                                            .adam_beta2 = 0.95,
                                            .adam_eps = 1e-8};
    struct clime_error e;
    if (clime_learner_open(&o, &learner, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(2);
    }
    free(dir);
    CHECK(clime_learner_sha256(learner, weights, &e) == CLIME_OK);
}

static void make_folders(struct clime_str seeds[FILES]) {
    struct clime_error e;
    fuzz_folder(root);
    snprintf(sound, sizeof sound, "%s/sound", root);
    snprintf(tried, sizeof tried, "%s/tried", root);
    snprintf(again, sizeof again, "%s/again", root);
    CHECK(clime_learner_save(learner, sound, &e) == CLIME_OK && clime_make_dirs(tried, &e) == CLIME_OK);
    for (int i = 0; i < FILES; i++) {
        char *path = path_of(sound, i);
        clime_buf_init(&files[i], (size_t)1 << 24);
        clime_buf_addc(&files[i], (char)i);
        CHECK(clime_buf_read_file(&files[i], path, &e) == CLIME_OK && sum_of(sound, i, &sums[i]));
        seeds[i] = clime_buf_str(&files[i]);
        put_sound(i);
        free(path);
    }
}

int main(int argc, char **argv) {
    static const char *const words[] = {"\"files\":{",
                                        "}",
                                        ":",
                                        ",",
                                        "\"step\":",
                                        "\"updates\":",
                                        "-1",
                                        "1e300",
                                        "1e-9",
                                        "null",
                                        "\"layout\":\"",
                                        "\"format\":1",
                                        "master.f32",
                                        "state.json",
                                        "../",
                                        "\"\"",
                                        "\x80\x7f",
                                        "\xc0\x7f",
                                        "\xff\xff",
                                        "/",
                                        "[[[[[",
                                        "{\"a\"",
                                        NULL};
    struct clime_str seeds[FILES];
    struct clime_error e;
    clime_log_open("fuzz", CLIME_LOG_ERROR);
    open_learner();
    make_folders(seeds);
    size_t most = 0;
    for (int i = 0; i < FILES; i++) most = seeds[i].len > most ? seeds[i].len : most;
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = FILES,
                           .words = words,
                           .max_bytes = most + 4096,
                           .iterations = 2000,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    clime_learner_close(learner);
    clime_dir_remove(root, &e);
    for (int i = 0; i < FILES; i++) clime_buf_free(&files[i]);
    return status;
}
