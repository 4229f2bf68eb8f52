// 16 lanes in two registers. Included inside a form's namespace; needs AVX2 and F16C.

struct F { __m256 a, b; };   // floats
struct I { __m256i a, b; };  // int32, often bits of floats
using H = __m256i;           // 16-bit words

GW_INLINE F splat(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
GW_INLINE F add(F v, F w) { return {_mm256_add_ps(v.a, w.a), _mm256_add_ps(v.b, w.b)}; }
GW_INLINE F sub(F v, F w) { return {_mm256_sub_ps(v.a, w.a), _mm256_sub_ps(v.b, w.b)}; }
GW_INLINE F mul(F v, F w) { return {_mm256_mul_ps(v.a, w.a), _mm256_mul_ps(v.b, w.b)}; }
GW_INLINE __m256 limit(__m256 v, __m256 bound) {
    return _mm256_max_ps(_mm256_min_ps(v, bound), _mm256_sub_ps(_mm256_setzero_ps(), bound));
}
GW_INLINE F limit(F v, F bound) { return {limit(v.a, bound.a), limit(v.b, bound.b)}; }

GW_INLINE F load(const float* from, All) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
GW_INLINE F load(const float* from, Some some) { return load(Padded<float>(from, some).lanes, All()); }
GW_INLINE void store(float* to, F v, All) {
    _mm256_storeu_ps(to, v.a);
    _mm256_storeu_ps(to + 8, v.b);
}
GW_INLINE void store(float* to, F v, Some some) {
    Padded<float> padded;
    store(padded.lanes, v, All());
    padded.copy_to(to, some);
}
constexpr bool STREAMS = true;
// Past the cache; `to` is aligned, and `fence` comes before anybody else reads it.
GW_INLINE void stream(float* to, F v, All) {
    _mm256_stream_ps(to, v.a);
    _mm256_stream_ps(to + 8, v.b);
}
template <class T>
GW_INLINE void stream(T* to, H words) {
    _mm256_stream_si256(reinterpret_cast<H*>(to), words);
}
GW_INLINE void fence() { _mm_sfence(); }

GW_INLINE F widen(H words, Half) {
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(words)), _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}
GW_INLINE __m256 widen_brain(__m128i words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
GW_INLINE F widen(H words, Brain) {
    return {widen_brain(_mm256_castsi256_si128(words)), widen_brain(_mm256_extracti128_si256(words, 1))};
}
GW_INLINE H narrow(F v, Half) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm256_set_m128i(_mm256_cvtps_ph(v.b, mode), _mm256_cvtps_ph(v.a, mode));
}
GW_INLINE __m256i narrow_brain(__m256 v) {  // finite values only
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
GW_INLINE H narrow(F v, Brain) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow_brain(v.a), narrow_brain(v.b)), 0xd8);
}
template <class T>
GW_INLINE H load_words(const T* from, All) {
    return _mm256_loadu_si256(reinterpret_cast<const H*>(from));
}
template <class T>
GW_INLINE H load_words(const T* from, Some some) {
    return load_words(Padded<T>(from, some).lanes, All());
}
template <class T>
GW_INLINE void store(T* to, H words, All) {
    _mm256_storeu_si256(reinterpret_cast<H*>(to), words);
}
template <class T>
GW_INLINE void store(T* to, H words, Some some) {
    Padded<T> padded;
    store(padded.lanes, words, All());
    padded.copy_to(to, some);
}

// Magnitudes are bits without the sign: they order like |v|.
GW_INLINE __m256i magnitude(__m256 v) {
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}
GW_INLINE I magnitude(F v) { return {magnitude(v.a), magnitude(v.b)}; }
GW_INLINE I no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
GW_INLINE I larger(I v, I w) { return {_mm256_max_epi32(v.a, w.a), _mm256_max_epi32(v.b, w.b)}; }
GW_INLINE void spill(uint32_t* to, I bits) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), bits.b);
}
GW_INLINE void spill(float* to, F v) { store(to, v, All()); }
GW_INLINE uint32_t largest(I v) {
    uint32_t lanes[16], most = 0;
    spill(lanes, v);
    for (uint32_t lane : lanes) most = lane > most ? lane : most;
    return most;
}
GW_INLINE uint32_t lane_bits(__m256 a, __m256 b) {
    return uint32_t(_mm256_movemask_ps(a)) | uint32_t(_mm256_movemask_ps(b)) << 8;
}
GW_INLINE uint32_t at_least(I bits, uint32_t limit) {
    const __m256i below = _mm256_set1_epi32(int32_t(limit) - 1);
    return lane_bits(_mm256_castsi256_ps(_mm256_cmpgt_epi32(bits.a, below)),
                     _mm256_castsi256_ps(_mm256_cmpgt_epi32(bits.b, below)));
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
    const __m256 zero = _mm256_setzero_ps();
    return lane_bits(_mm256_cmp_ps(v.a, zero, _CMP_GE_OQ), _mm256_cmp_ps(v.b, zero, _CMP_GE_OQ));
}
// All ones in the lanes of `mask`'s lowest 8 bits.
GW_INLINE __m256i spread(uint32_t mask) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int32_t(mask)), lane), lane);
}
GW_INLINE __m256 signed_by8(uint32_t mask, __m256 v) {
    const __m256 minus = _mm256_andnot_ps(_mm256_castsi256_ps(spread(mask)), _mm256_set1_ps(-0.0f));
    return _mm256_xor_ps(v, minus);
}
// v in the lanes of `mask`, -v in the others.
GW_INLINE F signed_by(uint32_t mask, F v) { return {signed_by8(mask, v.a), signed_by8(mask >> 8, v.b)}; }
GW_INLINE F without(F v, uint32_t mask) {
    return {_mm256_andnot_ps(_mm256_castsi256_ps(spread(mask)), v.a),
            _mm256_andnot_ps(_mm256_castsi256_ps(spread(mask >> 8)), v.b)};
}

GW_INLINE F chosen(uint32_t mask, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(spread(mask))),
            _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(spread(mask >> 8)))};
}

// Whole numbers and bits.
GW_INLINE I bits(F v) { return {_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)}; }
GW_INLINE F floats(I v) { return {_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
GW_INLINE I splat_int(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
GW_INLINE I plus(I v, I w) { return {_mm256_add_epi32(v.a, w.a), _mm256_add_epi32(v.b, w.b)}; }
GW_INLINE I both(I v, I w) { return {_mm256_and_si256(v.a, w.a), _mm256_and_si256(v.b, w.b)}; }
GW_INLINE I either(I v, I w) { return {_mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)}; }
template <int places>
GW_INLINE I up(I v) { return {_mm256_slli_epi32(v.a, places), _mm256_slli_epi32(v.b, places)}; }
template <int places>
GW_INLINE I down(I v) { return {_mm256_srli_epi32(v.a, places), _mm256_srli_epi32(v.b, places)}; }
template <int places>
GW_INLINE I down_signed(I v) { return {_mm256_srai_epi32(v.a, places), _mm256_srai_epi32(v.b, places)}; }
GW_INLINE __m256i below(__m256i v, __m256i limit, __m256i yes, __m256i no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(limit, v));
}
// `yes` where v < limit, `no` elsewhere.
GW_INLINE I below(I v, int32_t limit, I yes, I no) {
    const __m256i bound = _mm256_set1_epi32(limit);
    return {below(v.a, bound, yes.a, no.a), below(v.b, bound, yes.b, no.b)};
}

// Levels of 8 bits; |v| stays far below 2^31.
GW_INLINE I nearest(F v) { return {_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)}; }
GW_INLINE I floored(F v) { return nearest({_mm256_floor_ps(v.a), _mm256_floor_ps(v.b)}); }
GW_INLINE __m256i limit(__m256i v, int bound) {
    return _mm256_max_epi32(_mm256_min_epi32(v, _mm256_set1_epi32(bound)), _mm256_set1_epi32(-bound));
}
GW_INLINE I limit(I v, int bound) { return {limit(v.a, bound), limit(v.b, bound)}; }
GW_INLINE F to_float(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
GW_INLINE __m128i narrow_bytes(I v) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
GW_INLINE I widen_bytes(__m128i bytes) {
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
GW_INLINE void store(int8_t* to, I v, All) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow_bytes(v));
}
GW_INLINE void store(int8_t* to, I v, Some some) {
    Padded<int8_t> padded;
    store(padded.lanes, v, All());
    padded.copy_to(to, some);
}
GW_INLINE I load(const int8_t* from, All) {
    return widen_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
GW_INLINE I load(const int8_t* from, Some some) { return load(Padded<int8_t>(from, some).lanes, All()); }

// Levels of 4 bits, the first in the lowest bits.
GW_INLINE uint64_t to_nibbles(I v) {
    const __m128i low = _mm_and_si128(narrow_bytes(v), _mm_set1_epi8(15));
    const __m128i pairs = _mm_maddubs_epi16(low, _mm_set1_epi16(0x1001));
    return uint64_t(_mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)));
}
GW_INLINE I from_nibbles(uint64_t nibbles) {
    const __m128i words = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(int64_t(nibbles)));
    const __m128i low = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(15));
    const __m128i eight = _mm_set1_epi8(8);
    return widen_bytes(_mm_sub_epi8(_mm_xor_si128(low, eight), eight));
}

// A double per lane.
struct Sums {
    __m256d lanes[4];

    GW_METHOD Sums() {  // written out: implicit ones are not compiled for the instruction set
        for (__m256d& lane : lanes) lane = _mm256_setzero_pd();
    }

    static GW_METHOD __m256d low(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
    static GW_METHOD __m256d high(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
    GW_METHOD void add(int j, __m256d v) { lanes[j] = _mm256_add_pd(lanes[j], v); }
    GW_METHOD void add_square(int j, __m256d v) { add(j, _mm256_mul_pd(v, v)); }
    GW_METHOD void add_magnitudes(F v) {
        const __m256 a = _mm256_castsi256_ps(magnitude(v.a)), b = _mm256_castsi256_ps(magnitude(v.b));
        add(0, low(a)), add(1, high(a)), add(2, low(b)), add(3, high(b));
    }
    GW_METHOD void add_squares(F v) {
        add_square(0, low(v.a)), add_square(1, high(v.a)), add_square(2, low(v.b)), add_square(3, high(v.b));
    }
    GW_METHOD double total() const {
        double all[16];
        for (int j = 0; j < 4; ++j) _mm256_storeu_pd(all + 4 * j, lanes[j]);
        return fold(all);
    }
};

// Philox4x32-10 of two counters, one in each 128 bits; see vec_avx512.h.
GW_INLINE __m256i philox(uint64_t seed, uint64_t counter) {
    const __m256i multipliers = _mm256_set_epi32(0, int(0xCD9E8D57), 0, int(0xD2511F53), 0, int(0xCD9E8D57), 0,
                                                 int(0xD2511F53));
    const __m256i weyl = _mm256_set_epi32(0, int(0xBB67AE85), 0, int(0x9E3779B9), 0, int(0xBB67AE85), 0,
                                          int(0x9E3779B9));
    __m256i key = _mm256_set_epi32(0, int(seed >> 32), 0, int(seed), 0, int(seed >> 32), 0, int(seed));
    __m256i state = _mm256_set_epi64x(0, int64_t(counter + 1), 0, int64_t(counter));
    for (int round = 0; round < 10; ++round) {
        const __m256i products = _mm256_shuffle_epi32(_mm256_mul_epu32(state, multipliers), 0x1b);
        state = _mm256_xor_si256(products, _mm256_xor_si256(_mm256_srli_epi64(state, 32), key));
        key = _mm256_add_epi32(key, weyl);
    }
    return state;
}
GW_INLINE I random_words(uint64_t seed, uint64_t counter) {
    return {philox(seed, counter), philox(seed, counter + 2)};
}
