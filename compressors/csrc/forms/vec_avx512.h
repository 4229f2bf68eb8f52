// 16 lanes in one register. Included inside a form's namespace; needs AVX-512 F, BW, DQ, VL.

using F = __m512;   // floats
using I = __m512i;  // int32, often bits of floats
using H = __m256i;  // 16-bit words

GW_INLINE F splat(float v) { return _mm512_set1_ps(v); }
GW_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
GW_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
GW_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
GW_INLINE F limit(F v, F bound) {
    return _mm512_max_ps(_mm512_min_ps(v, bound), sub(_mm512_setzero_ps(), bound));
}

GW_INLINE F load(const float* from, All) { return _mm512_loadu_ps(from); }
GW_INLINE F load(const float* from, Some some) { return _mm512_maskz_loadu_ps(some.mask, from); }
GW_INLINE void store(float* to, F v, All) { _mm512_storeu_ps(to, v); }
GW_INLINE void store(float* to, F v, Some some) { _mm512_mask_storeu_ps(to, some.mask, v); }
constexpr bool STREAMS = true;
// Past the cache; `to` is aligned, and `fence` comes before anybody else reads it.
GW_INLINE void stream(float* to, F v, All) { _mm512_stream_ps(to, v); }
template <class T>
GW_INLINE void stream(T* to, H words) {
    _mm256_stream_si256(reinterpret_cast<H*>(to), words);
}
GW_INLINE void fence() { _mm_sfence(); }

GW_INLINE F widen(H words, Half) { return _mm512_cvtph_ps(words); }
GW_INLINE F widen(H words, Brain) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
GW_INLINE H narrow(F v, Half) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
GW_INLINE H narrow(F v, Brain) {  // finite values only
    const I bits = _mm512_castps_si512(v);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
template <class T>
GW_INLINE H load_words(const T* from, All) {
    return _mm256_loadu_si256(reinterpret_cast<const H*>(from));
}
template <class T>
GW_INLINE H load_words(const T* from, Some some) {
    return _mm256_maskz_loadu_epi16(some.mask, from);
}
template <class T>
GW_INLINE void store(T* to, H words, All) {
    _mm256_storeu_si256(reinterpret_cast<H*>(to), words);
}
template <class T>
GW_INLINE void store(T* to, H words, Some some) {
    _mm256_mask_storeu_epi16(to, some.mask, words);
}

// Magnitudes are bits without the sign: they order like |v|.
GW_INLINE I magnitude(F v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
GW_INLINE I no_bits() { return _mm512_setzero_si512(); }
GW_INLINE I larger(I a, I b) { return _mm512_max_epi32(a, b); }
GW_INLINE uint32_t largest(I v) { return uint32_t(_mm512_reduce_max_epi32(v)); }
GW_INLINE uint32_t at_least(I bits, uint32_t limit) {
    return _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(int32_t(limit)));
}
GW_INLINE void spill(uint32_t* to, I bits) { _mm512_storeu_si512(to, bits); }
GW_INLINE void spill(float* to, F v) { _mm512_storeu_ps(to, v); }
// Writes the lanes of `mask` in order; there is room for all 16.
GW_INLINE int append(uint32_t* to, I bits, uint32_t mask) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(mask), bits));
    return __builtin_popcount(mask);
}

GW_INLINE uint32_t not_negative(F v) { return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ); }
// v in the lanes of `mask`, -v in the others.
GW_INLINE F signed_by(uint32_t mask, F v) {
    return _mm512_mask_blend_ps(__mmask16(mask), sub(_mm512_setzero_ps(), v), v);
}
GW_INLINE F without(F v, uint32_t mask) { return _mm512_maskz_mov_ps(__mmask16(~mask), v); }

GW_INLINE F chosen(uint32_t mask, F yes, F no) { return _mm512_mask_blend_ps(__mmask16(mask), no, yes); }

// Whole numbers and bits.
GW_INLINE I bits(F v) { return _mm512_castps_si512(v); }
GW_INLINE F floats(I v) { return _mm512_castsi512_ps(v); }
GW_INLINE I splat_int(int32_t v) { return _mm512_set1_epi32(v); }
GW_INLINE I plus(I a, I b) { return _mm512_add_epi32(a, b); }
GW_INLINE I both(I a, I b) { return _mm512_and_si512(a, b); }
GW_INLINE I either(I a, I b) { return _mm512_or_si512(a, b); }
template <int places>
GW_INLINE I up(I v) { return _mm512_slli_epi32(v, places); }
template <int places>
GW_INLINE I down(I v) { return _mm512_srli_epi32(v, places); }
template <int places>
GW_INLINE I down_signed(I v) { return _mm512_srai_epi32(v, places); }
// `yes` where v < limit, `no` elsewhere.
GW_INLINE I below(I v, int32_t limit, I yes, I no) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(v, splat_int(limit)), no, yes);
}

// Levels of 8 bits; |v| stays far below 2^31.
GW_INLINE I nearest(F v) { return _mm512_cvtps_epi32(v); }
GW_INLINE I floored(F v) { return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
GW_INLINE I limit(I v, int bound) {
    return _mm512_max_epi32(_mm512_min_epi32(v, _mm512_set1_epi32(bound)), _mm512_set1_epi32(-bound));
}
GW_INLINE F to_float(I v) { return _mm512_cvtepi32_ps(v); }
GW_INLINE void store(int8_t* to, I v, All) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v));
}
GW_INLINE void store(int8_t* to, I v, Some some) { _mm_mask_storeu_epi8(to, some.mask, _mm512_cvtepi32_epi8(v)); }
GW_INLINE I load(const int8_t* from, All) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
GW_INLINE I load(const int8_t* from, Some some) {
    return _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(some.mask, from));
}

// Levels of 4 bits, the first in the lowest bits.
GW_INLINE uint64_t to_nibbles(I v) {
    const __m128i low = _mm_and_si128(_mm512_cvtepi32_epi8(v), _mm_set1_epi8(15));
    const __m128i pairs = _mm_maddubs_epi16(low, _mm_set1_epi16(0x1001));
    return uint64_t(_mm_cvtsi128_si64(_mm_packus_epi16(pairs, pairs)));
}
GW_INLINE I from_nibbles(uint64_t nibbles) {
    const __m128i words = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(int64_t(nibbles)));
    const __m128i low = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(15));
    const __m128i eight = _mm_set1_epi8(8);
    return _mm512_cvtepi8_epi32(_mm_sub_epi8(_mm_xor_si128(low, eight), eight));
}

// A double per lane.
struct Sums {
    __m512d low, high;

    // written out: implicit ones are not compiled for the instruction set
    GW_METHOD Sums() : low(_mm512_setzero_pd()), high(_mm512_setzero_pd()) {}

    GW_METHOD void add_magnitudes(F v) {
        const F positive = _mm512_castsi512_ps(magnitude(v));
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(positive)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(positive, 1)));
    }
    GW_METHOD void add_squares(F v) {
        const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        low = _mm512_add_pd(low, _mm512_mul_pd(a, a));
        high = _mm512_add_pd(high, _mm512_mul_pd(b, b));
    }
    GW_METHOD double total() const {
        double lanes[16];
        _mm512_storeu_pd(lanes, low);
        _mm512_storeu_pd(lanes + 8, high);
        return fold(lanes);
    }
};

// Philox4x32-10 of four counters, one in each 128 bits: the products of words 0 and 2 come out where, reversed, the
// next round wants them.
GW_INLINE I philox(uint64_t seed, uint64_t counter) {
    const I multipliers = _mm512_set4_epi32(0, int(0xCD9E8D57), 0, int(0xD2511F53));
    const I weyl = _mm512_set4_epi32(0, int(0xBB67AE85), 0, int(0x9E3779B9));
    I key = _mm512_set4_epi32(0, int(seed >> 32), 0, int(seed));
    I state = _mm512_set_epi64(0, int64_t(counter + 3), 0, int64_t(counter + 2), 0, int64_t(counter + 1), 0,
                               int64_t(counter));
    for (int round = 0; round < 10; ++round) {
        const I products = _mm512_shuffle_epi32(_mm512_mul_epu32(state, multipliers), _MM_PERM_ABCD);
        state = _mm512_xor_si512(products, _mm512_xor_si512(_mm512_srli_epi64(state, 32), key));
        key = _mm512_add_epi32(key, weyl);
    }
    return state;
}
GW_INLINE I random_words(uint64_t seed, uint64_t counter) { return philox(seed, counter); }
