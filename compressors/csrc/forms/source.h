// Where p comes from. Included inside a form's namespace, after its vec_*.h.

template <class Lanes>
GW_INLINE F load(const Half* from, Lanes lanes) {
    return widen(load_words(from, lanes), Half());
}
template <class Lanes>
GW_INLINE F load(const Brain* from, Lanes lanes) {
    return widen(load_words(from, lanes), Brain());
}

// One element; the vector forms of this are `widen`.
GW_INLINE float to_float(float v) { return v; }
GW_INLINE float to_float(Brain v) {
    const uint32_t bits = uint32_t(v.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}
GW_INLINE float to_float(Half v) {
    float lanes[16];
    spill(lanes, load(&v, Some(1)));
    return lanes[0];
}

template <class X, bool has_residual>
struct Source {
    const X* x;
    const float* residual;
    float decay;

    explicit Source(const Input& in)
        : x(static_cast<const X*>(in.x)), residual(in.residual), decay(in.decay) {}

    template <class Lanes>
    GW_METHOD F at(int64_t i, Lanes lanes) const {
        const F v = load(x + i, lanes);
        if constexpr (!has_residual) return v;
        // where decay is 1 the product is exact, and this is the plain sum
        return add(v, mul(splat(decay), load(residual + i, lanes)));
    }
    GW_METHOD void prefetch(int64_t i, int64_t ahead = AHEAD) const {
        call_for(x + i + ahead);
        if (has_residual) call_for(residual + i + ahead);
    }
    GW_METHOD float one(int64_t i) const {
        const float v = to_float(x[i]);
        return has_residual ? v + decay * residual[i] : v;
    }
};

// Where what is left of p goes, if anywhere. A range that is not aligned is not streamed.
struct Rest {
    float* const to;
    const bool streamed;

    Rest(const Input& in, int64_t begin)
        : to(in.rest), streamed(STREAMS && in.stream && reinterpret_cast<uintptr_t>(in.rest + begin) % 64 == 0) {}
    ~Rest() {
        if (streamed) fence();
    }
    GW_METHOD void put(int64_t i, F v, All lanes) const {
        if (streamed)
            stream(to + i, v, lanes);
        else if (to)
            store(to + i, v, lanes);
    }
    GW_METHOD void put(int64_t i, F v, Some lanes) const {
        if (to) store(to + i, v, lanes);
    }
};

// As `each`, for a range that may begin anywhere: if rest is streamed, the first vector has fewer lanes, such that the
// others are aligned. Calls step(lanes, i, rest).
template <class Step>
GW_INLINE void each_settled(const Input& in, int64_t begin, int64_t count, const Step& step) {
    const int64_t beyond = int64_t(reinterpret_cast<uintptr_t>(in.rest + begin) / sizeof(float) % 16);
    const int64_t head = STREAMS && in.stream && beyond ? 16 - beyond : 0, end = begin + count;
    const Rest rest(in, begin + head);
    int64_t i = begin;
    for (int64_t part = head < count ? head : count;; part = end - i) {
        if (part) step(Some(part), i, rest);
        for (i += part; i + 16 <= end; i += 16) step(All(), i, rest);
        if (i == end) break;
    }
}

// Calls loop(source), compiled for each dtype, with and without a residual.
template <class X, class Loop>
GW_INLINE auto with_x(const Input& in, const Loop& loop) {
    return in.residual ? loop(Source<X, true>(in)) : loop(Source<X, false>(in));
}
template <class Loop>
GW_INLINE auto with_source(const Input& in, const Loop& loop) {
    if (in.dtype == F16) return with_x<Half>(in, loop);
    if (in.dtype == BF16) return with_x<Brain>(in, loop);
    return with_x<float>(in, loop);
}
