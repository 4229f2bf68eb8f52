#include "two_bit.h"

#include "entry.h"

using namespace gw;

struct TwoBitEncode {
    Feed feed;
    int64_t block;
    uint8_t* payload;
    int32_t threads;
};
GW_API int64_t gw_two_bit_encode(const TwoBitEncode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Whole elements(a.feed.input(), block);
    TwoBitEncoder<Whole> encoder(elements, n, block, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct TwoBitDecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
};
GW_API int64_t gw_two_bit_decode_add(const TwoBitDecodeAdd& a) {
    const Target& to = a.to;
    if (!acceptable(a.payload, 2 * blocks_in(to.n, a.block))) return REFUSED;
    over_target(to, [&](Span range) {
        add_two_bits(a.payload, to.n, a.block, range, to.weight, to.out + range.begin);
    });
    return DONE;
}
