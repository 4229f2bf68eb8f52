// Two bits per element and two magnitudes per block: magnitudes, then codes.
#pragma once

#include <cmath>

#include "blocks.h"

namespace gw {

template <class Elements>
struct alignas(LINE) TwoBitEncoder {
    const Form& form;
    Elements& elements;
    uint8_t *const magnitudes, *const codes;

    TwoBitEncoder(Elements& elements, int64_t n, int64_t block, uint8_t* payload)
        : form(active()), elements(elements), magnitudes(payload), codes(payload + 8 * blocks_in(n, block)) {}

    static float mean_of(double sum, int64_t count) { return count ? float(sum / double(count)) : 0.0f; }

    // False if p is not finite.
    bool encode(Span block, int64_t index) const {
        double sum = 0;
        Apart sums = {0, 0, 0};
        elements.first(block, [&](const Input& in, int64_t begin, int64_t count) {
            sum += form.sum(in, begin, count, 1);
        });
        if (!std::isfinite(sum)) return false;
        const float mean = mean_of(sum, block.count);
        elements.again(block, [&](const Input& in, int64_t begin, int64_t count) {
            form.sum_apart(in, begin, count, mean, sums);
        });
        const Pair pair = {guarded(mean_of(sums.low, block.count - sums.reach)),
                           guarded(mean_of(sums.high, sums.reach)), mean};
        set(magnitudes, 2 * index, pair.low);
        set(magnitudes, 2 * index + 1, pair.high);
        elements.last(block, [&](const Input& in, int64_t begin, int64_t count) {
            form.two_bit_pack(in, begin, count, pair, codes + begin / 4);
        });
        return true;
    }
    // Blocks that are few and long are rare: one thread does.
    bool encode_together(Span block, int64_t index, int) const { return encode(block, index); }
};

// out[0, count) += weight * the elements of a range that begins with a byte.
inline void add_two_bits(const uint8_t* payload, int64_t n, int64_t block, Span range, float weight, float* out) {
    const Form& form = active();
    const uint8_t* const codes = payload + 8 * blocks_in(n, block);
    each_block(range, block, [&](int64_t begin, int64_t count, int64_t index) {
        const float low = get<float>(payload, 2 * index), high = get<float>(payload, 2 * index + 1);
        form.two_bit_add(codes + begin / 4, count, low * weight, high * weight, out + (begin - range.begin));
    });
}

}  // namespace gw
