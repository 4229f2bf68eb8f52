// One bit per element and a scale per block: scales, then bits.

#include <cmath>
#include <memory>
#include <new>

#include "blocks.h"
#include "entry.h"

using namespace gw;

static float scale_of(double sum, int64_t count, int order) {
    const double mean = sum / double(count);
    return guarded(float(order == 1 ? mean : std::sqrt(mean)));
}

// Calls piece(begin, count, index) for pieces of a block; their sums are added in this order.
template <class Piece>
static void each_piece(int64_t begin, int64_t count, const Piece& piece) {
    for (int64_t at = 0; at < count; at += PIECE) piece(begin + at, std::min(PIECE, count - at), at / PIECE);
}

// A block in several threads, each with a run of pieces; false if it is not finite.
static bool encode_long(const Form& form, const Input& in, Span block, int order, uint8_t* scale, uint8_t* bits,
                        double* sums, int workers) {
    const auto mine = [&](int worker) { return part_of(block.count, PIECE, workers, worker); };
    parallel(workers, [&](int worker) {
        const Span part = mine(worker);
        each_piece(block.begin + part.begin, part.count, [&](int64_t begin, int64_t count, int64_t index) {
            sums[part.begin / PIECE + index] = form.sum(in, begin, count, order);
        });
    });
    double sum = 0;
    for (int64_t piece = 0; piece < blocks_in(block.count, PIECE); ++piece) sum += sums[piece];
    if (!std::isfinite(sum)) return false;
    const float size = scale_of(sum, block.count, order);
    set(scale, 0, size);
    parallel(workers, [&](int worker) {
        const Span part = mine(worker);
        const int64_t begin = block.begin + part.begin;
        if (part.count) form.sign_pack(in, begin, part.count, size, bits + begin / 8);
    });
    return true;
}

GW_API int64_t gw_sign_encode(GW_FEED, int64_t block, int32_t order, uint8_t* payload, int32_t threads) {
    const Form& form = active();
    const Input in = GW_INPUT;
    block = std::min(block, n);
    uint8_t* const bits = payload + 4 * blocks_in(n, block);
    const auto encode = [&](int64_t begin, int64_t count, int64_t b) {
        double sum = 0;
        each_piece(begin, count, [&](int64_t at, int64_t many, int64_t) { sum += form.sum(in, at, many, order); });
        if (!std::isfinite(sum)) return false;
        const float scale = scale_of(sum, count, order);
        set(payload, b, scale);
        form.sign_pack(in, begin, count, scale, bits + begin / 8);
        return true;
    };
    std::unique_ptr<double[]> sums;
    const auto together = [&](int64_t begin, int64_t count, int64_t b, int workers) {
        if (!sums) sums.reset(new (std::nothrow) double[size_t(blocks_in(block, PIECE))]);
        if (!sums) return encode(begin, count, b);
        return encode_long(form, in, {begin, count}, order, payload + 4 * b, bits, sums.get(), workers);
    };
    return encode_blocks(n, block, threads, encode, together) ? DONE : NOT_FINITE;
}

// The bits alone.
GW_API void gw_sign_pack(const void* x, int32_t dtype, int64_t n, uint8_t* bits, int32_t threads) {
    const Form& form = active();
    const Input in = {x, nullptr, nullptr, 1, dtype};
    over_parts(n, PIECE, threads, [&](int64_t begin, int64_t count) {
        form.sign_pack(in, begin, count, 0, bits + begin / 8);
    });
}

// With scales of any kind, at any address.
GW_API void gw_sign_unpack_add(const uint8_t* bits, const uint8_t* scales, int64_t n, int64_t block, float* out,
                               float weight, int32_t threads) {
    const Form& form = active();
    decode_blocks(scales, n, block, weight, threads, [&](int64_t begin, int64_t count, float w) {
        form.sign_add(bits + begin / 8, count, w, out + begin);
    });
}

GW_API int64_t gw_sign_decode_add(const uint8_t* payload, int64_t n, int64_t block, float* out, float weight,
                                  int32_t threads) {
    const int64_t blocks = blocks_in(n, block);
    if (!acceptable(payload, blocks)) return REFUSED;
    gw_sign_unpack_add(payload + 4 * blocks, payload, n, block, out, weight, threads);
    return DONE;
}
