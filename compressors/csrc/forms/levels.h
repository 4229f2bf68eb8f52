// Eight and four bits per element. Included inside a form's namespace, after fp8.h and signs.h.

// The highest 24 bits of 16 words as numbers in [0, 1).
GW_INLINE F uniform(uint64_t seed, uint64_t counter) {
    return mul(to_float(down<8>(random_words(seed, counter))), splat(0x1p-24f));
}
// Numbers i to i + 15 of the stream: four counters, or parts of five.
GW_INLINE F uniform_from(uint64_t seed, int64_t i) {
    const uint64_t counter = uint64_t(i) / 4;
    if (i % 4 == 0) return uniform(seed, counter);
    float numbers[32];
    spill(numbers, uniform(seed, counter));
    spill(numbers + 16, uniform(seed, counter + 4));
    return load(numbers + i % 4, All());
}

struct Nearest {
    GW_METHOD I operator()(F v, int64_t) const { return nearest(v); }
};
struct AtRandom {
    uint64_t seed;
    GW_METHOD I operator()(F v, int64_t i) const { return floored(add(v, uniform_from(seed, i))); }
};

template <int bits>
struct Packed;
template <>
struct Packed<8> {
    template <class Lanes>
    static GW_METHOD void put(uint8_t* levels, int64_t i, I level, Lanes lanes) {
        store(reinterpret_cast<int8_t*>(levels + i), level, lanes);
    }
    template <class Lanes>
    static GW_METHOD I get(const uint8_t* levels, int64_t i, Lanes lanes) {
        return load(reinterpret_cast<const int8_t*>(levels + i), lanes);
    }
};
template <>
struct Packed<4> {
    static GW_METHOD void put(uint8_t* levels, int64_t i, I level, All) {
        const uint64_t nibbles = to_nibbles(level);
        memcpy(levels + i / 2, &nibbles, 8);
    }
    static GW_METHOD void put(uint8_t* levels, int64_t i, I level, Some some) {
        const uint64_t nibbles = to_nibbles(level) & ((uint64_t(1) << 4 * some.count) - 1);
        memcpy(levels + i / 2, &nibbles, size_t(some.count + 1) / 2);
    }
    static GW_METHOD I get(const uint8_t* levels, int64_t i, All) {
        uint64_t nibbles;
        memcpy(&nibbles, levels + i / 2, 8);
        return from_nibbles(nibbles);
    }
    static GW_METHOD I get(const uint8_t* levels, int64_t i, Some some) {
        uint64_t nibbles = 0;
        memcpy(&nibbles, levels + i / 2, size_t(some.count + 1) / 2);
        return from_nibbles(nibbles);
    }
};

// Each grid has the code of an element that was divided by its scale, and the way back.
template <int most, int bits_each, class Round>
struct Whole {
    static constexpr int bits = bits_each;
    Round round;
    GW_METHOD I code(F v, int64_t i) const { return limit(round(v, i), most); }
    static GW_METHOD F value(I code) { return to_float(code); }
};
template <int most, class Type>
struct Float {
    static constexpr int bits = 8;
    static GW_METHOD I code(F v, int64_t) { return Type::narrow8(limit(v, splat(float(most)))); }
    static GW_METHOD F value(I code) { return Type::widen8(code); }
};
// Calls loop(grid).
template <class Loop>
GW_INLINE void with_grid(Grid grid, const uint64_t* seed, const Loop& loop) {
    if (grid == E4M3) return loop(Float<448, Small<3, 7>>());
    if (grid == E5M2) return loop(Float<57344, Small<2, 15>>());
    if (grid == INT4) return seed ? loop(Whole<7, 4, AtRandom>{{*seed}}) : loop(Whole<7, 4, Nearest>());
    seed ? loop(Whole<127, 8, AtRandom>{{*seed}}) : loop(Whole<127, 8, Nearest>());
}

static void quantize(const Input& in, int64_t begin, int64_t count, float scale, Grid grid, const uint64_t* seed,
                     uint8_t* levels) {
    const Rest rest(in, begin);
    const int64_t ahead = lookahead(count);
    const F factor = splat(scale > 0 ? 1 / scale : 0.0f), back = splat(scale);
    with_source(in, [&](auto p) {
        with_grid(grid, seed, [&](auto to) {
            each(begin, count, [&](auto lanes, int64_t i) {
                const F v = p.at(i, lanes);
                p.prefetch(i, ahead);
                const I code = to.code(mul(v, factor), i);
                Packed<decltype(to)::bits>::put(levels, i - begin, code, lanes);
                rest.put(i, sub(v, mul(to.value(code), back)), lanes);
            });
        });
    });
}

static void levels_add(const uint8_t* levels, Grid grid, int64_t count, float weight, float* out) {
    const F factor = splat(weight);
    with_grid(grid, nullptr, [&](auto from) {
        constexpr int bits = decltype(from)::bits;
        each(0, count, [&](auto lanes, int64_t i) {
            call_for(levels + (i + AHEAD) * bits / 8);
            call_for(out + i + AHEAD);
            const F value = mul(from.value(Packed<bits>::get(levels, i, lanes)), factor);
            store(out + i, add(load(out + i, lanes), value), lanes);
        });
    });
}
