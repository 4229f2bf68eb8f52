// Finding and writing the largest elements. Included inside a form's namespace, after source.h.

static void sample(const Input& in, int64_t stride, int64_t count, uint32_t* histogram) {
    with_source(in, [&](auto p) {
        // a pseudo-random place in each stratum: columns of a matrix must not line up with the strata
        uint32_t jitter = 1;
        int64_t places[64];
        for (int64_t begin = 0; begin < count; begin += 64) {
            const int64_t these = count - begin < 64 ? count - begin : 64;
            for (int64_t j = 0; j < these; ++j) {
                jitter = jitter * 1664525u + 1013904223u;
                places[j] = (begin + j) * stride + int64_t(uint64_t(jitter >> 8) * uint64_t(stride) >> 24);
                p.prefetch(places[j], 0);
            }
            for (int64_t j = 0; j < these; ++j) ++histogram[(bits_of(p.one(places[j])) & 0x7fffffffu) >> 17];
        }
    });
}

// What the survey does with a vector that reaches `low`; an overflow ends the listing.
GW_INLINE void list(Survey& s, I bits, uint32_t hits) {
    const uint32_t above = hits & at_least(bits, s.high);
    s.above += __builtin_popcount(above);
    if (s.size + 16 > s.capacity) {
        s.size = -1;
        s.low = INFINITE;  // nothing finite comes here again
        return;
    }
    s.size += append(s.list + s.size, bits, hits & ~above);
}

static void survey(const Input& in, int64_t begin, int64_t count, Survey& s) {
    with_source(in, [&](auto p) {
        I most = no_bits();
        each_settled(in, begin, count, [&](auto lanes, int64_t i, const Rest& rest) {
            p.prefetch(i);
            const F v = p.at(i, lanes);
            const I bits = magnitude(v);
            most = larger(most, bits);
            rest.put(i, v, lanes);
            if (const uint32_t hits = at_least(bits, s.low) & lanes.mask)
                if (s.size >= 0) list(s, bits, hits);
        });
        s.peak = largest(most);
    });
}

static int64_t count(const uint32_t* list, int64_t size, uint32_t limit) {
    int64_t sum = 0;
    for (int64_t begin = 0; begin < size; begin += 1 << 16) {
        const int64_t end = begin + (1 << 16) < size ? begin + (1 << 16) : size;
        int32_t here = 0;  // compilers make vectors of this loop
#pragma GCC unroll 4
        for (int64_t j = begin; j < end; ++j) here += int32_t(list[j]) >= int32_t(limit);
        sum += here;
    }
    return sum;
}

static uint32_t histogram(const Input& in, int64_t begin, int64_t count, Level level, uint64_t* digits) {
    return with_source(in, [&](auto p) {
        I most = no_bits();
        each(begin, count, [&](auto lanes, int64_t i) {
            p.prefetch(i);
            const I bits = magnitude(p.at(i, lanes));
            most = larger(most, bits);
            uint32_t hits = at_least(bits, level.low) & ~at_least(bits, level.high) & lanes.mask;
            if (!hits) return;
            uint32_t all[16];
            spill(all, bits);
            for (; hits; hits &= hits - 1) {
                const int lane = __builtin_ctz(hits);
                ++digits[lane % TURNS * DIGITS + ((all[lane] - level.low) >> level.shift)];
            }
        });
        return largest(most);
    });
}

// Writes entries in order: per chunk a count, per entry its offset and its value.
template <class Offset>
struct Writer {
    uint8_t *counts, *offsets, *values;
    int64_t base, end;  // of the chunk
    uint32_t count = 0;

    Writer(const Emission& e, int64_t begin)
        : counts(e.counts), offsets(e.offsets), values(e.values),
          base(e.width == 4 ? 0 : begin), end(e.width == 4 ? INT64_MAX : begin + chunk_of(e.width)) {}

    template <class T>
    static GW_METHOD void put(uint8_t*& to, T v) {
        memcpy(to, &v, sizeof v);
        to += sizeof v;
    }
    GW_METHOD void next_chunk() {
        put(counts, Offset(count));
        count = 0;
        base = end;
        end += chunk_of(sizeof(Offset));
    }
    GW_METHOD void write(F v, int64_t first, uint32_t hits) {
        float all[16];
        spill(all, v);
        for (; hits; hits &= hits - 1) {
            const int lane = __builtin_ctz(hits);
            while (first + lane >= end) next_chunk();
            put(offsets, Offset(first + lane - base));
            if (values) put(values, all[lane]);
            ++count;
        }
    }
    // Counts of the last chunk and of those behind it.
    GW_METHOD void finish(int64_t stop) {
        if (sizeof(Offset) == 4) return;
        while (base < stop) next_chunk();
    }
};

// Of the lanes that reach the threshold, drops ties beyond the quota; once that is used up, raises the limit.
GW_INLINE uint32_t within_quota(uint32_t hits, I bits, uint32_t threshold, int64_t& ties, uint32_t& limit) {
    uint32_t equal = hits & ~at_least(bits, threshold + 1);
    for (; equal; equal &= equal - 1) {
        if (ties == 0)
            hits &= ~(equal & -equal);
        else
            --ties;
    }
    if (ties == 0) limit = threshold + 1;
    return hits;
}

// The first lanes of a mask, as far as there is room.
GW_INLINE uint32_t within(uint32_t hits, int64_t room) {
    while (__builtin_popcount(hits) > room) hits &= ~(0x80000000u >> __builtin_clz(hits));
    return hits;
}

template <class Offset, class S>
GW_INLINE int64_t emit_as(const S& p, float* rest, int64_t begin, int64_t count, const Emission& e) {
    Writer<Offset> writer(e, begin);
    int64_t ties = e.ties, room = e.room;
    uint32_t limit = e.threshold + (ties == 0);
    each(begin, count, [&](auto lanes, int64_t i) {
        p.prefetch(i);
        const F v = p.at(i, lanes);
        const I bits = magnitude(v);
        uint32_t hits = at_least(bits, limit) & lanes.mask;
        if (!hits) return;
        if (ties) hits = within_quota(hits, bits, e.threshold, ties, limit);
        hits = within(hits, room);
        room -= __builtin_popcount(hits);
        writer.write(v, i, hits);
        if (rest && e.values) store(rest + i, without(v, hits), lanes);
    });
    writer.finish(begin + count);
    return e.room - room;
}
static int64_t emit(const Input& in, int64_t begin, int64_t count, Emission e) {
    return with_source(in, [&](auto p) {
        if (e.width == 1) return emit_as<uint8_t>(p, in.rest, begin, count, e);
        if (e.width == 2) return emit_as<uint16_t>(p, in.rest, begin, count, e);
        return emit_as<uint32_t>(p, in.rest, begin, count, e);
    });
}

static void pick(const Input& in, const int64_t* places, int64_t count, float* out) {
    with_source(in, [&](auto p) {
        for (int64_t j = 0; j < count; ++j) p.prefetch(places[j], 0);
        for (int64_t j = 0; j < count; ++j) out[j] = p.one(places[j]);
    });
}

template <class Offset, class S>
GW_INLINE int64_t emit_settling_as(const S& p, const Input& in, int64_t begin, int64_t count, const Emission& e,
                                   uint32_t* peak) {
    Writer<Offset> writer(e, begin);
    int64_t room = e.room;
    I most = no_bits();
    each_settled(in, begin, count, [&](auto lanes, int64_t i, const Rest& rest) {
        p.prefetch(i);
        F v = p.at(i, lanes);
        const I bits = magnitude(v);
        most = larger(most, bits);
        if (uint32_t hits = at_least(bits, e.threshold + 1) & lanes.mask) {
            hits = within(hits, room);
            room -= __builtin_popcount(hits);
            writer.write(v, i, hits);
            if (e.values) v = without(v, hits);
        }
        rest.put(i, v, lanes);
    });
    writer.finish(begin + count);
    *peak = largest(most);
    return e.room - room;
}
static int64_t emit_settling(const Input& in, int64_t begin, int64_t count, Emission e, uint32_t* peak) {
    return with_source(in, [&](auto p) {
        return e.width == 1 ? emit_settling_as<uint8_t>(p, in, begin, count, e, peak)
                            : emit_settling_as<uint16_t>(p, in, begin, count, e, peak);
    });
}
