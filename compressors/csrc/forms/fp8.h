// Floats of 8 bits. Included inside a form's namespace, after its vec_*.h.
//
// All codes are finite: those that elsewhere mean infinity and no number continue the series. Codes are held as signed
// bytes are, so that the sign bit is that of the lane.

template <int mantissa_bits, int one>  // one: the exponent field of 1
struct Small {
    static constexpr int drop = 23 - mantissa_bits, shift = 127 - one;
    // the smallest magnitude but 0, and the smallest with all its bits
    static GW_METHOD float unit() { return 2.0f / float(1 << one) / float(1 << mantissa_bits); }
    static GW_METHOD float normal() { return 2.0f / float(1 << one); }

    // To the nearest, to even where two are; |v| is at most the largest of them.
    static GW_METHOD I narrow8(F v) {
        const I size = magnitude(v), sign = both(down_signed<24>(bits(v)), splat_int(-128));
        const I odd = both(down<drop>(size), splat_int(1));
        const I nudged = plus(size, plus(odd, splat_int((1 << (drop - 1)) - 1)));
        const I rounded = plus(down<drop>(nudged), splat_int(-(shift << mantissa_bits)));
        // the lowest bit of this number counts as much as that of a denormal: adding it rounds
        const float magic = unit() * 0x1p23f;
        const I tiny = plus(bits(add(floats(size), splat(magic))), splat_int(-int32_t(bits_of(magic))));
        return either(below(size, int32_t(bits_of(normal())), tiny, rounded), sign);
    }
    static GW_METHOD F widen8(I code) {
        const I size = both(code, splat_int(0x7f)), sign = up<24>(both(code, splat_int(0x80)));
        const I scaled = plus(up<drop>(size), splat_int(shift << 23));
        const I tiny = bits(mul(to_float(size), splat(unit())));
        return floats(either(below(size, 1 << mantissa_bits, tiny, scaled), sign));
    }
};
