// Eight bits per element and a scale per block: scales, then levels.

#include <cmath>

#include "blocks.h"
#include "entry.h"

using namespace gw;

// From the largest magnitude, as bits; so that 127 times the scale stays finite.
static float scale_of(uint32_t peak) {
    static const float largest = std::nextafter(FLT_MAX / 127, 0.0f);
    float most;
    memcpy(&most, &peak, sizeof most);
    return guarded(std::min(most / 127, largest));
}

namespace {

struct Encoder {
    const Form& form;
    const Input first, second;  // for the pass that measures a block, and for the one that writes it
    const uint64_t* const seed;
    uint8_t* const scales;
    int8_t* const levels;

    Encoder(const Input& in, int64_t n, int64_t block, const uint64_t* seed, uint8_t* payload)
        : form(active()), first(in.first_of_two(block)), second(in.second_of_two(block)), seed(seed), scales(payload),
          levels(reinterpret_cast<int8_t*>(payload + 4 * blocks_in(n, block))) {}

    uint32_t measure(int64_t begin, int64_t count) const {
        return (first.rest ? form.settle : form.peak)(first, begin, count);
    }
    // False if p is not finite.
    bool put_scale(uint32_t peak, int64_t index) const {
        set(scales, index, scale_of(peak));
        return peak < INFINITE;
    }
    void write(int64_t begin, int64_t count, int64_t index) const {
        form.quantize(second, begin, count, get<float>(scales, index), seed, levels + begin);
    }
    bool encode(Span block, int64_t index) const {
        if (!put_scale(measure(block.begin, block.count), index)) return false;
        write(block.begin, block.count, index);
        return true;
    }
    bool encode_together(Span block, int64_t index, int workers) const {
        const uint32_t peak = largest_of(block.count, PIECE, workers, [&](int64_t at, int64_t count) {
            return measure(block.begin + at, count);
        });
        if (!put_scale(peak, index)) return false;
        over_parts(block.count, PIECE, workers,
                   [&](int64_t at, int64_t count) { write(block.begin + at, count, index); });
        return true;
    }
};

}  // namespace

struct Int8Encode {
    Feed feed;
    int64_t block;
    uint64_t seed;  // means nothing unless levels are rounded at random
    uint8_t* payload;
    int32_t at_random, threads;
};
GW_API int64_t gw_int8_encode(const Int8Encode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Encoder encoder(a.feed.input(), n, block, a.at_random ? &a.seed : nullptr, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct Int8DecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
};
GW_API int64_t gw_int8_decode_add(const Int8DecodeAdd& a) {
    const Form& form = active();
    const int64_t blocks = blocks_in(a.to.n, a.block);
    const int8_t* const levels = reinterpret_cast<const int8_t*>(a.payload + 4 * blocks);
    if (!acceptable(a.payload, blocks)) return REFUSED;
    decode_blocks(a.payload, a.block, a.to, [&](int64_t begin, int64_t count, float weight) {
        form.int8_add(levels + begin, count, weight, a.to.out + begin);
    });
    return DONE;
}
