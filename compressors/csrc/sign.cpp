// One bit per element and a scale per block: scales, then bits.

#include <cmath>
#include <memory>
#include <new>

#include "blocks.h"

using namespace gw;

static float scale_of(double sum, int64_t count, int order) {
    const double mean = sum / double(count);
    return guarded(float(order == 1 ? mean : std::sqrt(mean)));
}

namespace {

struct alignas(LINE) Encoder {
    const Form& form;
    const Input first, second;  // for the pass that measures a block, and for the one that writes it
    const int order;
    uint8_t *const scales, *const bits;
    std::unique_ptr<double[]> sums;

    Encoder(const Input& in, int64_t n, int64_t block, int order, uint8_t* payload)
        : form(active()), first(in.first_of_two(block)), second(in.second_of_two(block)), order(order),
          scales(payload), bits(payload + 4 * blocks_in(n, block)) {}

    // False if the sum, and so p, is not finite.
    bool put_scale(double sum, Span block, int64_t index) const {
        set(scales, index, scale_of(sum, block.count, order));
        return std::isfinite(sum);
    }
    void pack(Span part, int64_t index) const {
        form.sign_pack(second, part.begin, part.count, get<float>(scales, index), bits + part.begin / 8);
    }
    bool encode(Span block, int64_t index) const {
        double sum = 0;
        each_piece(block, [&](int64_t begin, int64_t count, int64_t) { sum += form.sum(first, begin, count, order); });
        if (!put_scale(sum, block, index)) return false;
        pack(block, index);
        return true;
    }
    // The same in several threads, each with a run of pieces.
    bool encode_together(Span block, int64_t index, int workers) {
        const int64_t pieces = blocks_in(block.count, PIECE);
        if (!sums) sums.reset(new (std::nothrow) double[size_t(pieces)]);
        if (!sums) return encode(block, index);
        over_parts(block.count, PIECE, workers, [&](int64_t at, int64_t many) {
            each_piece({block.begin + at, many}, [&](int64_t begin, int64_t count, int64_t piece) {
                sums[size_t(at / PIECE + piece)] = form.sum(first, begin, count, order);
            });
        });
        double sum = 0;
        for (int64_t piece = 0; piece < pieces; ++piece) sum += sums[size_t(piece)];
        if (!put_scale(sum, block, index)) return false;
        over_parts(block.count, PIECE, workers,
                   [&](int64_t at, int64_t many) { pack({block.begin + at, many}, index); });
        return true;
    }
};

}  // namespace

struct SignEncode {
    Feed feed;
    int64_t block;
    uint8_t* payload;
    int32_t order, threads;
};
GW_API int64_t gw_sign_encode(const SignEncode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Encoder encoder(a.feed.input(), n, block, a.order, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct SignPack {
    const void* x;
    uint8_t* bits;
    int64_t n;
    int32_t dtype, threads;
};
// The bits alone.
GW_API int64_t gw_sign_pack(const SignPack& a) {
    const Form& form = active();
    const Input in = {a.x, nullptr, nullptr, 1, a.dtype, false};
    over_parts(a.n, PIECE, workers_for(a.n, a.threads), [&](int64_t begin, int64_t count) {
        form.sign_pack(in, begin, count, 0, a.bits + begin / 8);
    });
    return DONE;
}

struct SignUnpackAdd {
    const uint8_t *bits, *scales;
    int64_t block;
    Target to;
};
// With scales of any kind, at any address.
GW_API int64_t gw_sign_unpack_add(const SignUnpackAdd& a) {
    const Form& form = active();
    const auto add = [&](int64_t begin, int64_t count, int64_t block) {
        form.sign_add(a.bits + begin / 8, count, get<float>(a.scales, block) * a.to.weight, a.to.out + begin);
    };
    over_target(a.to, [&](Span range) { each_block(range, a.block, add); });
    return DONE;
}

struct SignDecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
};
GW_API int64_t gw_sign_decode_add(const SignDecodeAdd& a) {
    const int64_t blocks = blocks_in(a.to.n, a.block);
    if (!acceptable(a.payload, blocks)) return REFUSED;
    return gw_sign_unpack_add({a.payload + 4 * blocks, a.payload, a.block, a.to});
}
