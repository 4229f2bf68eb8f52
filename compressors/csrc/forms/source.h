// Where p comes from. Included inside a form's namespace, after its vec_*.h.

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
    GW_METHOD float one(int64_t i) const {
        const float v = to_float(x[i]);
        return has_residual ? v + decay * residual[i] : v;
    }
};

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
