/* zstd. Called where packets are made and applied, any thread. Owns nothing.
 *
 * Invariant: unpacking writes into memory of the size in the packet's manifest, checked before; no allocation depends
 * on the data.
 */
#include "model/packet/zip.h"

#include <zstd.h>

#include "common/err.h"

size_t clime_zip_bound(size_t n) {
    return ZSTD_compressBound(n);
}

size_t clime_zip(const void *data, size_t n, void *out, size_t size) {
    size_t len = ZSTD_compress(out, size, data, n, 1);
    CHECK(!ZSTD_isError(len));
    return len;
}

bool clime_unzip(const void *data, size_t n, void *out, size_t n_out) {
    return ZSTD_decompress(out, n_out, data, n) == n_out; /* an error is a number larger than any size */
}
