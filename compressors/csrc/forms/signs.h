// One bit, and two bits, per element. Included inside a form's namespace, after source.h.

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

static void sum_apart(const Input& in, int64_t begin, int64_t count, float limit, Apart& sums) {
    const uint32_t least = bits_of(limit);
    with_source(in, [&](auto p) {
        Sums low, high;
        int64_t many = 0;
        each(begin, count, [&](auto lanes, int64_t i) {
            const F v = p.at(i, lanes);
            const uint32_t hits = at_least(magnitude(v), least) & lanes.mask;
            many += __builtin_popcount(hits);
            low.add_magnitudes(without(v, hits));
            high.add_magnitudes(without(v, ~hits));
        });
        sums.low += low.total();
        sums.high += high.total();
        sums.reach += many;
    });
}

// The bits of two masks take turns, beginning with the first; and the first of two such masks.
GW_INLINE uint32_t laced(uint32_t mask, uint32_t other) {
    uint64_t bits = mask | uint64_t(other) << 32;
    bits = (bits | bits << 8) & 0x00ff00ff00ff00ffu;
    bits = (bits | bits << 4) & 0x0f0f0f0f0f0f0f0fu;
    bits = (bits | bits << 2) & 0x3333333333333333u;
    bits = (bits | bits << 1) & 0x5555555555555555u;
    return uint32_t(bits) | uint32_t(bits >> 32) << 1;
}
GW_INLINE uint32_t unlaced(uint32_t bits) {
    bits &= 0x55555555u;
    bits = (bits | bits >> 1) & 0x33333333u;
    bits = (bits | bits >> 2) & 0x0f0f0f0fu;
    bits = (bits | bits >> 4) & 0x00ff00ffu;
    return (bits | bits >> 8) & 0xffffu;
}
GW_INLINE void put_codes(uint8_t* to, uint32_t codes, All) { memcpy(to, &codes, 4); }
GW_INLINE void put_codes(uint8_t* to, uint32_t codes, Some some) {
    memcpy(to, &codes, size_t(some.count + 3) / 4);
}
GW_INLINE uint32_t get_codes(const uint8_t* from, All) {
    uint32_t codes;
    memcpy(&codes, from, 4);
    return codes;
}
GW_INLINE uint32_t get_codes(const uint8_t* from, Some some) {
    uint32_t codes = 0;
    memcpy(&codes, from, size_t(some.count + 3) / 4);
    return codes;
}

static void two_bit_pack(const Input& in, int64_t begin, int64_t count, Pair pair, uint8_t* codes) {
    const Rest rest(in, begin);
    const uint32_t least = bits_of(pair.mean);
    with_source(in, [&](auto p) {
        const F low = splat(pair.low), high = splat(pair.high);
        each(begin, count, [&](auto lanes, int64_t i) {
            const F v = p.at(i, lanes);
            const uint32_t sign = not_negative(v), large = at_least(magnitude(v), least);
            put_codes(codes + (i - begin) / 4, laced(sign & lanes.mask, large & lanes.mask), lanes);
            rest.put(i, sub(v, signed_by(sign, chosen(large, high, low))), lanes);
        });
    });
}

static void two_bit_add(const uint8_t* codes, int64_t count, float low, float high, float* out) {
    const F small = splat(low), large = splat(high);
    each(0, count, [&](auto lanes, int64_t i) {
        call_for(out + i + AHEAD);
        const uint32_t code = get_codes(codes + i / 4, lanes);
        const F value = signed_by(unlaced(code), chosen(unlaced(code >> 1), large, small));
        store(out + i, add(load(out + i, lanes), value), lanes);
    });
}
