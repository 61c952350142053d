/* Storage and numbers of words (words.cuh), and which of them a kernel passes to the next one. Called by the context's
 * owner.
 *
 * Only kernels of a recording have words. Their numbers count from its begin; the device adds the numbers of all
 * earlier replays, updated by a kernel after each replay's last one, so that count is constant during a replay and
 * known from a kernel's first instruction. Numbers repeat after 2^31: a word is misread only if it was last written
 * exactly that many numbers ago. */
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"

static const size_t N_WORDS[] = /* clime_words_of */
    {1 << 16, 1 << 10, 1 << 10, 1 << 17, 1 << 19};

struct clime_word_room {
    uint64_t *at;     /* device: those of N_WORDS, contiguous */
    uint32_t *before; /* device: numbers of all replays so far */
    uint32_t n;       /* numbers of this recording */
    struct {
        clime_words words;
        const void *what;
        unsigned at; /* n_launched after the kernel that gives it */
    } given;
};

void clime_cuda_words_open(struct clime_dev *d) {
    struct clime_word_room *w = d->words = (struct clime_word_room *)xcalloc(1, sizeof *d->words);
    size_t bytes = 0;
    for (size_t n : N_WORDS) bytes += n * sizeof *w->at;
    if (CU(d, cudaMalloc(&w->at, bytes))) CU(d, cudaMemset(w->at, 0, bytes)); /* numbers begin with 1 */
    if (CU(d, cudaMalloc(&w->before, sizeof *w->before))) CU(d, cudaMemset(w->before, 0, sizeof *w->before));
}

void clime_cuda_words_close(struct clime_dev *d) {
    if (d->words) {
        cudaFree(d->words->at);
        cudaFree(d->words->before);
    }
    free(d->words);
}

uint64_t *clime_cuda_words_at(const struct clime_dev *d, enum clime_words_of of) {
    uint64_t *at = d->words->at;
    for (int i = 0; i < of; i++) at += N_WORDS[i];
    return at;
}

struct clime_words clime_cuda_words(struct clime_dev *d, enum clime_words_of of, size_t n) {
    struct clime_word_room *w = d->words;
    if (!d->recording || n > N_WORDS[of]) return clime_words{};
    return {clime_cuda_words_at(d, of), w->before, ++w->n};
}

void clime_cuda_words_give(struct clime_dev *d, const void *what, struct clime_words words) {
    if (words.at) d->words->given = {words, what, d->n_launched + 1};
}

struct clime_words clime_cuda_words_given(const struct clime_dev *d, const void *what) {
    const struct clime_word_room *w = d->words;
    bool there = d->recording && w->given.what == what && w->given.at == d->n_launched;
    return there ? w->given.words : clime_words{};
}

static __global__ void count_kernel(uint32_t *before, uint32_t n) {
    *before += n;
}

void clime_cuda_words_recorded(struct clime_dev *d) {
    struct clime_word_room *w = d->words;
    if (w->n > 0) launch_after(d, count_kernel, 1, 1, 0, w->before, w->n);
    w->n = 0;
    w->given.what = NULL;
}
