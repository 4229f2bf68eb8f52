// 16 lanes in four vectors of the compiler's own, which it maps to whatever the processor has. Included inside a
// form's namespace.

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Word4 __attribute__((vector_size(16)));
typedef uint16_t Short4 __attribute__((vector_size(8)));
typedef int8_t Byte4 __attribute__((vector_size(4)));

struct F { Float4 v[4]; };        // floats
struct I { Int4 v[4]; };          // int32, often bits of floats
struct H { uint16_t lanes[16]; };  // 16-bit words

template <class To, class From>
GW_INLINE To reread(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
// The results of f for each quarter.
template <class To, class Quarter>
GW_INLINE To quarters(const Quarter& f) {
    return {{f(0), f(1), f(2), f(3)}};
}
// a where the mask is all ones, b where it is 0.
template <class T>
GW_INLINE T choose(Int4 mask, T a, T b) {
    return reread<T>((reread<Int4>(a) & mask) | (reread<Int4>(b) & ~mask));
}
GW_INLINE Float4 splat4(float v) { return Float4{v, v, v, v}; }
GW_INLINE Int4 splat4(int32_t v) { return Int4{v, v, v, v}; }
GW_INLINE Float4 limit(Float4 v, Float4 bound) {
    const Float4 upper = choose(v > bound, bound, v);
    return choose(upper < -bound, -bound, upper);
}

GW_INLINE F splat(float v) { return {{splat4(v), splat4(v), splat4(v), splat4(v)}}; }
GW_INLINE F add(F a, F b) { return quarters<F>([&](int q) { return a.v[q] + b.v[q]; }); }
GW_INLINE F sub(F a, F b) { return quarters<F>([&](int q) { return a.v[q] - b.v[q]; }); }
GW_INLINE F mul(F a, F b) { return quarters<F>([&](int q) { return a.v[q] * b.v[q]; }); }
GW_INLINE F limit(F v, F bound) { return quarters<F>([&](int q) { return limit(v.v[q], bound.v[q]); }); }

GW_INLINE F load(const float* from, All) {
    F v;
    memcpy(&v, from, sizeof v);
    return v;
}
GW_INLINE F load(const float* from, Some some) { return load(Padded<float>(from, some).lanes, All()); }
GW_INLINE void store(float* to, F v, All) { memcpy(to, &v, sizeof v); }
GW_INLINE void store(float* to, F v, Some some) { memcpy(to, &v, some.count * sizeof(float)); }
// Compilers have no common name for stores past the cache.
constexpr bool STREAMS = false;
GW_INLINE void stream(float* to, F v, All lanes) { store(to, v, lanes); }
template <class T>
GW_INLINE void stream(T* to, H words) {
    memcpy(to, &words, sizeof words);
}
GW_INLINE void fence() {}

// fp16 has 5 bits of exponent: as bits of a float they are 112 too low, which a product mends, also for denormals.
GW_INLINE Float4 widen(Word4 words, Half) {
    const Int4 moved = reread<Int4>((words & 0x7fff) << 13);
    const Int4 mended = reread<Int4>(reread<Float4>(moved) * splat4(0x1p112f));
    const Int4 special = (moved >= splat4(0x7c00 << 13)) & splat4(0x7f800000);
    return reread<Float4>(mended | special | reread<Int4>((words & 0x8000) << 16));
}
GW_INLINE Float4 widen(Word4 words, Brain) { return reread<Float4>(words << 16); }
// Finite values within the range of the type. Below 2^-14, adding 0.5 rounds to a denormal in the lowest bits.
GW_INLINE Word4 narrow(Float4 v, Half) {
    const Int4 sign = reread<Int4>((reread<Word4>(v) >> 16) & 0x8000);
    const Int4 bits = reread<Int4>(v) & 0x7fffffff;
    const Int4 tiny = reread<Int4>(reread<Float4>(bits) + splat4(0.5f)) - 0x3f000000;
    const Int4 rounded = (bits + ((bits >> 13) & 1) + (0xfff - (112 << 23))) >> 13;
    return reread<Word4>(choose(bits < splat4(113 << 23), tiny, rounded) | sign);
}
GW_INLINE Word4 narrow(Float4 v, Brain) {
    const Word4 bits = reread<Word4>(v);
    return (bits + ((bits >> 16) & 1) + 0x7fff) >> 16;
}
template <class T>
GW_INLINE F widen(H words, T type) {
    return quarters<F>([&](int q) {
        Short4 quarter;
        memcpy(&quarter, words.lanes + 4 * q, sizeof quarter);
        return widen(__builtin_convertvector(quarter, Word4), type);
    });
}
template <class T>
GW_INLINE H narrow(F v, T type) {
    H words;
    for (int q = 0; q < 4; ++q) {
        const Short4 quarter = __builtin_convertvector(narrow(v.v[q], type), Short4);
        memcpy(words.lanes + 4 * q, &quarter, sizeof quarter);
    }
    return words;
}
template <class T, class Lanes>
GW_INLINE H load_words(const T* from, Lanes lanes) {
    H words = {};
    memcpy(&words, from, lanes.count * sizeof(T));
    return words;
}
template <class T, class Lanes>
GW_INLINE void store(T* to, H words, Lanes lanes) {
    memcpy(to, &words, lanes.count * sizeof(T));
}

// Magnitudes are bits without the sign: they order like |v|.
GW_INLINE I magnitude(F v) { return quarters<I>([&](int q) { return reread<Int4>(v.v[q]) & 0x7fffffff; }); }
GW_INLINE I no_bits() { return {}; }
GW_INLINE I larger(I a, I b) { return quarters<I>([&](int q) { return choose(a.v[q] > b.v[q], a.v[q], b.v[q]); }); }
GW_INLINE void spill(uint32_t* to, I bits) { memcpy(to, &bits, sizeof bits); }
GW_INLINE void spill(float* to, F v) { memcpy(to, &v, sizeof v); }
GW_INLINE uint32_t largest(I v) {
    uint32_t lanes[16], most = 0;
    spill(lanes, v);
    for (uint32_t lane : lanes) most = lane > most ? lane : most;
    return most;
}
// A number from four masks of four lanes, and the way back.
GW_INLINE Int4 lane_bits(int q) { return Int4{1, 2, 4, 8} << (4 * q); }
template <class Mask>
GW_INLINE uint32_t gathered(const Mask& mask) {
    const Int4 all = (mask(0) & lane_bits(0)) | (mask(1) & lane_bits(1)) | (mask(2) & lane_bits(2)) |
                     (mask(3) & lane_bits(3));
    return uint32_t(all[0] | all[1] | all[2] | all[3]);
}
GW_INLINE Int4 spread(uint32_t mask, int q) { return (splat4(int32_t(mask)) & lane_bits(q)) == lane_bits(q); }
GW_INLINE uint32_t at_least(I bits, uint32_t limit) {
    return gathered([&](int q) { return Int4(bits.v[q] >= splat4(int32_t(limit))); });
}
// Writes the lanes of `mask` in order; there is room for all 16.
GW_INLINE int append(uint32_t* to, I bits, uint32_t mask) {
    uint32_t lanes[16];
    spill(lanes, bits);
    int size = 0;
    for (; mask; mask &= mask - 1) to[size++] = lanes[__builtin_ctz(mask)];
    return size;
}

GW_INLINE uint32_t not_negative(F v) {
    return gathered([&](int q) { return Int4(v.v[q] >= splat4(0.0f)); });
}
// v in the lanes of `mask`, -v in the others.
GW_INLINE F signed_by(uint32_t mask, F v) {
    return quarters<F>([&](int q) { return choose(spread(mask, q), v.v[q], -v.v[q]); });
}
GW_INLINE F without(F v, uint32_t mask) {
    return quarters<F>([&](int q) { return choose(spread(mask, q), splat4(0.0f), v.v[q]); });
}

GW_INLINE F chosen(uint32_t mask, F yes, F no) {
    return quarters<F>([&](int q) { return choose(spread(mask, q), yes.v[q], no.v[q]); });
}

// Whole numbers and bits.
GW_INLINE I bits(F v) { return reread<I>(v); }
GW_INLINE F floats(I v) { return reread<F>(v); }
GW_INLINE I splat_int(int32_t v) { return {{splat4(v), splat4(v), splat4(v), splat4(v)}}; }
GW_INLINE I plus(I a, I b) { return quarters<I>([&](int q) { return a.v[q] + b.v[q]; }); }
GW_INLINE I both(I a, I b) { return quarters<I>([&](int q) { return a.v[q] & b.v[q]; }); }
GW_INLINE I either(I a, I b) { return quarters<I>([&](int q) { return a.v[q] | b.v[q]; }); }
template <int places>
GW_INLINE I up(I v) { return quarters<I>([&](int q) { return reread<Int4>(reread<Word4>(v.v[q]) << places); }); }
template <int places>
GW_INLINE I down(I v) { return quarters<I>([&](int q) { return reread<Int4>(reread<Word4>(v.v[q]) >> places); }); }
template <int places>
GW_INLINE I down_signed(I v) { return quarters<I>([&](int q) { return v.v[q] >> places; }); }
// `yes` where v < limit, `no` elsewhere.
GW_INLINE I below(I v, int32_t limit, I yes, I no) {
    return quarters<I>([&](int q) { return choose(Int4(v.v[q] < splat4(limit)), yes.v[q], no.v[q]); });
}

// Levels of 8 bits; |v| stays below 2^22, where adding 1.5 * 2^23 rounds to a whole number.
GW_INLINE F to_float(I v) { return quarters<F>([&](int q) { return __builtin_convertvector(v.v[q], Float4); }); }
GW_INLINE I nearest(F v) {
    const Float4 magic = splat4(0x1.8p23f);
    return quarters<I>([&](int q) { return __builtin_convertvector((v.v[q] + magic) - magic, Int4); });
}
GW_INLINE I floored(F v) {
    return quarters<I>([&](int q) {
        const Int4 cut = __builtin_convertvector(v.v[q], Int4);
        return cut + Int4(__builtin_convertvector(cut, Float4) > v.v[q]);  // a true lane is -1
    });
}
GW_INLINE I limit(I v, int bound) {
    const Int4 most = splat4(bound), least = splat4(-bound);
    return quarters<I>([&](int q) {
        const Int4 upper = choose(v.v[q] > most, most, v.v[q]);
        return choose(upper < least, least, upper);
    });
}
struct Bytes { int8_t lanes[16]; };
GW_INLINE Bytes narrow(I v) {
    Bytes bytes;
    for (int q = 0; q < 4; ++q) {
        const Byte4 quarter = __builtin_convertvector(v.v[q], Byte4);
        memcpy(bytes.lanes + 4 * q, &quarter, sizeof quarter);
    }
    return bytes;
}
GW_INLINE void store(int8_t* to, I v, All) {
    const Bytes bytes = narrow(v);
    memcpy(to, bytes.lanes, 16);
}
GW_INLINE void store(int8_t* to, I v, Some some) {
    const Bytes bytes = narrow(v);
    memcpy(to, bytes.lanes, some.count);
}
GW_INLINE I load(const int8_t* from, All) {
    return quarters<I>([&](int q) {
        Byte4 quarter;
        memcpy(&quarter, from + 4 * q, sizeof quarter);
        return __builtin_convertvector(quarter, Int4);
    });
}
GW_INLINE I load(const int8_t* from, Some some) { return load(Padded<int8_t>(from, some).lanes, All()); }

// Levels of 4 bits, the first in the lowest bits.
GW_INLINE uint64_t to_nibbles(I v) {
    const Bytes bytes = narrow(v);
    uint64_t nibbles = 0;
    for (int lane = 0; lane < 16; ++lane) nibbles |= uint64_t(bytes.lanes[lane] & 15) << 4 * lane;
    return nibbles;
}
GW_INLINE I from_nibbles(uint64_t nibbles) {
    int8_t lanes[16];
    for (int lane = 0; lane < 16; ++lane) lanes[lane] = int8_t(int((nibbles >> 4 * lane & 15) ^ 8) - 8);
    return load(lanes, All());
}

// A double per lane.
struct Sums {
    double lanes[16] = {};

    GW_METHOD void add_magnitudes(F v) {
        float all[16];
        spill(all, v);
        for (int j = 0; j < 16; ++j) lanes[j] += double(__builtin_fabsf(all[j]));
    }
    GW_METHOD void add_squares(F v) {
        float all[16];
        spill(all, v);
        for (int j = 0; j < 16; ++j) lanes[j] += double(all[j]) * double(all[j]);
    }
    GW_METHOD double total() const {
        double all[16];
        memcpy(all, lanes, sizeof all);
        return fold(all);
    }
};

// Philox4x32-10 of one counter.
GW_INLINE void philox(uint64_t seed, uint64_t counter, uint32_t* words) {
    uint32_t a = uint32_t(counter), b = uint32_t(counter >> 32), c = 0, d = 0;
    uint32_t low = uint32_t(seed), high = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t one = uint64_t(a) * 0xD2511F53u, two = uint64_t(c) * 0xCD9E8D57u;
        a = uint32_t(two >> 32) ^ b ^ low, b = uint32_t(two);
        c = uint32_t(one >> 32) ^ d ^ high, d = uint32_t(one);
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}
GW_INLINE I random_words(uint64_t seed, uint64_t counter) {
    uint32_t words[16];
    for (int j = 0; j < 4; ++j) philox(seed, counter + uint64_t(j), words + 4 * j);
    return reread<I>(words);
}
