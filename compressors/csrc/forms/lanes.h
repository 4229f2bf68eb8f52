// Included inside a form's namespace, before its vec_*.h.
//
// A vector is 16 floats in every form; a set of lanes is a number with 16 bits. The last vector of a range may have
// fewer lanes: operations that touch memory take `All` or `Some`, the others work on whole vectors, where missing
// lanes were loaded as 0.

// fp16 and bf16 in memory.
struct Half {
    static constexpr float most = 65504.0f;
    uint16_t bits;
};
struct Brain {
    static constexpr float most = 0x1.fep127f;
    uint16_t bits;
};

struct All {
    static constexpr int count = 16;
    static constexpr uint32_t mask = 0xffff;
};

struct Some {
    explicit Some(int64_t lanes) : count(int(lanes)), mask((1u << lanes) - 1) {}
    int count;
    uint32_t mask;
};

// Calls step(lanes, i) for each vector of a range.
template <class Step>
GW_INLINE void each(int64_t begin, int64_t count, const Step& step) {
    const int64_t end = begin + count;
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) step(All(), i);
    if (i < end) step(Some(end - i), i);
}

// So many elements before they are wanted, vectors are called for. Processors do this themselves while reading goes on
// evenly, but less far, and not after a wrong guess at a branch. There may be nothing there: that does no harm.
constexpr int64_t AHEAD = 1024;
template <class T>
GW_INLINE void call_for(const T* memory) {
    __builtin_prefetch(memory);
}

// Some lanes by way of a whole vector in memory, for forms without masked loads and stores.
template <class T>
struct Padded {
    T lanes[16] = {};

    Padded() = default;
    Padded(const T* from, Some some) { memcpy(lanes, from, some.count * sizeof(T)); }
    void copy_to(T* to, Some some) const { memcpy(to, lanes, some.count * sizeof(T)); }
};

GW_INLINE uint32_t bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

// Halves are added: lane j and j + 8, then j and j + 4, and so on. The order is part of the format of a sum.
GW_INLINE double fold(double* lanes) {
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    return lanes[0];
}
