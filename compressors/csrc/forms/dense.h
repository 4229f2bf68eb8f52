// Checks, copies and casts. Included inside a form's namespace, after source.h.

static uint32_t peak(const Input& in, int64_t begin, int64_t count) {
    return with_source(in, [&](auto p) {
        I most = no_bits();
        each(begin, count, [&](auto lanes, int64_t i) { most = larger(most, magnitude(p.at(i, lanes))); });
        return largest(most);
    });
}

static uint32_t settle(const Input& in, int64_t begin, int64_t count) {
    const Rest rest(in, begin);
    return with_source(in, [&](auto p) {
        I most = no_bits();
        each(begin, count, [&](auto lanes, int64_t i) {
            p.prefetch(i);
            const F v = p.at(i, lanes);
            most = larger(most, magnitude(v));
            rest.put(i, v, lanes);
        });
        return largest(most);
    });
}

// 16-bit words are copied as they are, and judged as what they mean.
template <class X>
GW_INLINE uint32_t copy_words(const X* x, int64_t begin, int64_t count, X* out) {
    I most = no_bits();
    each(begin, count, [&](auto lanes, int64_t i) {
        const H words = load_words(x + i, lanes);
        most = larger(most, magnitude(widen(words, X())));
        store(out + i, words, lanes);
    });
    return largest(most);
}
static uint32_t copy(const Input& in, int64_t begin, int64_t count, void* out) {
    if (in.dtype == F16) return copy_words(static_cast<const Half*>(in.x), begin, count, static_cast<Half*>(out));
    if (in.dtype == BF16) return copy_words(static_cast<const Brain*>(in.x), begin, count, static_cast<Brain*>(out));
    return settle({in.x, nullptr, static_cast<float*>(out), 1, F32, in.stream}, begin, count);
}

static void zero(float* out, int64_t begin, int64_t count, bool past_cache) {
    const F nothing = splat(0);
    each_settled({nullptr, nullptr, out, 1, F32, past_cache}, begin, count,
                 [&](auto lanes, int64_t i, const Rest& rest) { rest.put(i, nothing, lanes); });
}

template <class S, class T>
GW_INLINE uint32_t cast_as(const S& p, const Rest& rest, int64_t begin, int64_t count, float divisor, T* out,
                           bool past_cache, int64_t* saturated) {
    const bool streamed = STREAMS && past_cache && reinterpret_cast<uintptr_t>(out + begin) % 32 == 0;
    // powers of two: the product is the quotient
    const F factor = splat(1.0f / divisor), back = splat(divisor), bound = splat(T::most / divisor);
    const uint32_t too_large = bits_of(T::most) + 1;
    I most = no_bits();
    int64_t beyond = 0;
    each(begin, count, [&](auto lanes, int64_t i) {
        p.prefetch(i);
        const F v = p.at(i, lanes);
        const I size = magnitude(v);
        most = larger(most, size);
        if (const uint32_t outside = at_least(size, too_large)) beyond += __builtin_popcount(outside);
        const H words = narrow(limit(mul(v, factor), bound), T());
        if (streamed && lanes.count == 16)
            stream(out + i, words);
        else
            store(out + i, words, lanes);
        rest.put(i, sub(v, mul(widen(words, T()), back)), lanes);
    });
    if (streamed) fence();
    *saturated += beyond;
    return largest(most);
}
static uint32_t cast(const Input& in, int64_t begin, int64_t count, float divisor, int dtype, void* out, bool past_cache,
                     int64_t* saturated) {
    const Rest rest(in, begin);
    return with_source(in, [&](auto p) {
        if (dtype == F16) return cast_as(p, rest, begin, count, divisor, static_cast<Half*>(out), past_cache, saturated);
        return cast_as(p, rest, begin, count, divisor, static_cast<Brain*>(out), past_cache, saturated);
    });
}

template <class T>
GW_INLINE void cast_add_as(const T* values, int64_t count, float weight, float* out) {
    const F factor = splat(weight);
    each(0, count, [&](auto lanes, int64_t i) {
        call_for(values + i + AHEAD);
        call_for(out + i + AHEAD);
        store(out + i, add(load(out + i, lanes), mul(load(values + i, lanes), factor)), lanes);
    });
}
static void cast_add(const void* values, int dtype, int64_t count, float weight, float* out) {
    if (dtype == F16) return cast_add_as(static_cast<const Half*>(values), count, weight, out);
    if (dtype == BF16) return cast_add_as(static_cast<const Brain*>(values), count, weight, out);
    cast_add_as(static_cast<const float*>(values), count, weight, out);
}
