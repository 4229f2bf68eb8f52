// One bit, and eight bits, per element. Included inside a form's namespace, after source.h.

// A short block is read twice: while it is written, one that follows comes from memory.
GW_INLINE int64_t lookahead(int64_t count) { return count < 2048 ? 2048 : count <= 8192 ? count : 0; }

static double sum(const Input& in, int64_t begin, int64_t count, int order) {
    const Rest rest(in, begin);
    return with_source(in, [&](auto p) {
        Sums sums;
        each(begin, count, [&](auto lanes, int64_t i) {
            p.prefetch(i);
            const F v = p.at(i, lanes);
            if (order == 1)
                sums.add_magnitudes(v);
            else
                sums.add_squares(v);
            rest.put(i, v, lanes);
        });
        return sums.total();
    });
}

// The bits of 16 elements, or of those that are left.
GW_INLINE void put_bits(uint8_t* to, uint32_t mask, All) {
    const uint16_t bits = uint16_t(mask);
    memcpy(to, &bits, 2);
}
GW_INLINE void put_bits(uint8_t* to, uint32_t mask, Some some) {
    const uint16_t bits = uint16_t(mask & some.mask);
    memcpy(to, &bits, some.count > 8 ? 2 : 1);
}
GW_INLINE uint32_t get_bits(const uint8_t* from, All) {
    uint16_t bits;
    memcpy(&bits, from, 2);
    return bits;
}
GW_INLINE uint32_t get_bits(const uint8_t* from, Some some) {
    uint16_t bits = 0;
    memcpy(&bits, from, some.count > 8 ? 2 : 1);
    return bits;
}

static void sign_pack(const Input& in, int64_t begin, int64_t count, float scale, uint8_t* bits) {
    const Rest rest(in, begin);
    const int64_t ahead = lookahead(count);
    with_source(in, [&](auto p) {
        const F size = splat(scale);
        each(begin, count, [&](auto lanes, int64_t i) {
            const F v = p.at(i, lanes);
            const uint32_t mask = not_negative(v);
            p.prefetch(i, ahead);
            put_bits(bits + (i - begin) / 8, mask, lanes);
            rest.put(i, sub(v, signed_by(mask, size)), lanes);
        });
    });
}

static void sign_add(const uint8_t* bits, int64_t count, float weight, float* out) {
    const F size = splat(weight);
    each(0, count, [&](auto lanes, int64_t i) {
        call_for(out + i + AHEAD);
        const F value = signed_by(get_bits(bits + i / 8, lanes), size);
        store(out + i, add(load(out + i, lanes), value), lanes);
    });
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

template <class S, class Round>
GW_INLINE void quantize_by(const S& p, const Rest& rest, int64_t begin, int64_t count, float scale, int8_t* levels,
                           const Round& round) {
    const int64_t ahead = lookahead(count);
    const F factor = splat(scale > 0 ? 1 / scale : 0.0f), back = splat(scale);
    each(begin, count, [&](auto lanes, int64_t i) {
        const F v = p.at(i, lanes);
        p.prefetch(i, ahead);
        const I level = limit(round(mul(v, factor), i), 127);
        store(levels + (i - begin), level, lanes);
        rest.put(i, sub(v, mul(to_float(level), back)), lanes);
    });
}
static void quantize(const Input& in, int64_t begin, int64_t count, float scale, const uint64_t* seed,
                     int8_t* levels) {
    const Rest rest(in, begin);
    with_source(in, [&](auto p) {
        if (!seed)
            quantize_by(p, rest, begin, count, scale, levels, Nearest());
        else
            quantize_by(p, rest, begin, count, scale, levels, AtRandom{*seed});
    });
}

static void int8_add(const int8_t* levels, int64_t count, float weight, float* out) {
    const F factor = splat(weight);
    each(0, count, [&](auto lanes, int64_t i) {
        call_for(levels + i + AHEAD);
        call_for(out + i + AHEAD);
        const F value = mul(to_float(load(levels + i, lanes)), factor);
        store(out + i, add(load(out + i, lanes), value), lanes);
    });
}
