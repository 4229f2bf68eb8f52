// Picking elements whose places are given. Included inside a form's namespace, after source.h.

// Takes those of the next `count` elements whose turn it is, and returns their lanes. A place that should have come
// before ends the picking: it is not counted as taken, which the caller notices.
GW_INLINE uint32_t pick(Picks& picks, int64_t first, F v, int count) {
    float all[16];
    spill(all, v);
    uint32_t lanes = 0;
    for (; picks.count; --picks.count) {
        const int64_t lane = *picks.places - first;
        if (lane >= count) break;
        const uint32_t bit = lane < 0 ? 0 : 1u << lane;
        if (bit <= lanes) {
            picks.count = 0;
            break;
        }
        lanes |= bit;
        *picks.out++ = all[lane];
        ++picks.places;
        ++picks.taken;
    }
    return lanes;
}

static void gather(const Input& in, int64_t begin, int64_t count, Picks& picks) {
    with_source(in, [&](auto p) {
        I most = no_bits();
        each_settled(in, begin, count, [&](auto lanes, int64_t i, const Rest& rest) {
            p.prefetch(i);
            F v = p.at(i, lanes);
            most = larger(most, magnitude(v));
            if (picks.count && *picks.places < i + 16) v = without(v, pick(picks, i, v, lanes.count));
            rest.put(i, v, lanes);
        });
        picks.peak = largest(most);
    });
}
