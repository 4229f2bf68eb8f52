// Two bits per element and two magnitudes per block: magnitudes, then codes.

#include <cmath>

#include "blocks.h"

using namespace gw;

namespace {

struct alignas(LINE) Encoder {
    const Form& form;
    const Input first, second;  // for the pass that sums a block, and for those that sum again and write it
    uint8_t *const magnitudes, *const codes;

    Encoder(const Input& in, int64_t n, int64_t block, uint8_t* payload)
        : form(active()), first(in.first_of_two(block)), second(in.second_of_two(block)), magnitudes(payload),
          codes(payload + 8 * blocks_in(n, block)) {}

    static float mean_of(double sum, int64_t count) { return count ? float(sum / double(count)) : 0.0f; }

    bool encode(Span block, int64_t index) const {
        double sum = 0;
        Apart sums = {0, 0, 0};
        each_piece(block, [&](int64_t begin, int64_t count, int64_t) { sum += form.sum(first, begin, count, 1); });
        if (!std::isfinite(sum)) return false;
        const float mean = mean_of(sum, block.count);
        each_piece(block, [&](int64_t begin, int64_t count, int64_t) {
            form.sum_apart(second, begin, count, mean, sums);
        });
        const Pair pair = {guarded(mean_of(sums.low, block.count - sums.reach)),
                           guarded(mean_of(sums.high, sums.reach)), mean};
        set(magnitudes, 2 * index, pair.low);
        set(magnitudes, 2 * index + 1, pair.high);
        form.two_bit_pack(second, block.begin, block.count, pair, codes + block.begin / 4);
        return true;
    }
    // Blocks that are few and long are rare: one thread does.
    bool encode_together(Span block, int64_t index, int) const { return encode(block, index); }
};

}  // namespace

struct TwoBitEncode {
    Feed feed;
    int64_t block;
    uint8_t* payload;
    int32_t threads;
};
GW_API int64_t gw_two_bit_encode(const TwoBitEncode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Encoder encoder(a.feed.input(), n, block, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct TwoBitDecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
};
GW_API int64_t gw_two_bit_decode_add(const TwoBitDecodeAdd& a) {
    const Form& form = active();
    const int64_t blocks = blocks_in(a.to.n, a.block);
    const uint8_t* const codes = a.payload + 8 * blocks;
    if (!acceptable(a.payload, 2 * blocks)) return REFUSED;
    decode_blocks(a.block, a.to, [&](int64_t begin, int64_t count, int64_t block) {
        const float low = get<float>(a.payload, 2 * block), high = get<float>(a.payload, 2 * block + 1);
        form.two_bit_add(codes + begin / 4, count, low * a.to.weight, high * a.to.weight, a.to.out + begin);
    });
    return DONE;
}
