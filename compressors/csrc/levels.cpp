#include "levels.h"

#include "entry.h"

using namespace gw;

struct LevelsEncode {
    Feed feed;
    int64_t block;
    uint64_t seed;  // means nothing unless levels are rounded at random
    uint8_t* payload;
    int32_t grid, at_random, threads;
};
GW_API int64_t gw_levels_encode(const LevelsEncode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Whole elements(a.feed.input(), block);
    LevelsEncoder<Whole> encoder(elements, n, block, Grid(a.grid), a.at_random ? &a.seed : nullptr, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct LevelsDecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
    int32_t grid;
};
GW_API int64_t gw_levels_decode_add(const LevelsDecodeAdd& a) {
    const Target& to = a.to;
    if (!acceptable(a.payload, blocks_in(to.n, a.block))) return REFUSED;
    over_target(to, [&](Span range) {
        add_levels(a.payload, to.n, a.block, Grid(a.grid), range, to.weight, to.out + range.begin);
    });
    return DONE;
}
