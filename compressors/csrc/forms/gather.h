// One element from each of k runs. Included inside a form's namespace, after source.h.

static void places(const Strata& strata, int64_t first, int64_t* out) {
    uint32_t words[16];
    spill(words, random_words(strata.seed, uint64_t(first) / 4));
    for (int64_t j = 0; j < 16; ++j)
        out[j] = strata.start(first + j) + int64_t(uint64_t(words[j]) * uint64_t(strata.length(first + j)) >> 32);
}

// The places from an element on, one after the other.
struct Places {
    const Strata& strata;
    int64_t run, next;  // the next place, and whose it is
    int64_t held[16];

    Places(const Strata& strata, int64_t begin) : strata(strata), run(strata.run_of(begin)) {
        places(strata, run & ~int64_t(15), held);
        next = held[run % 16];
        if (next < begin) step();
    }
    void step() {
        if (++run % 16 == 0 && run < strata.k) places(strata, run, held);
        next = run < strata.k ? held[run % 16] : INT64_MAX;
    }
};

static uint32_t gather(const Input& in, int64_t begin, int64_t count, const Strata& strata, float* out) {
    return with_source(in, [&](auto p) {
        Places picks(strata, begin);
        I most = no_bits();
        each_settled(in, begin, count, [&](auto lanes, int64_t i, const Rest& rest) {
            p.prefetch(i);
            F v = p.at(i, lanes);
            most = larger(most, magnitude(v));
            if (picks.next < i + lanes.count) {
                float all[16];
                uint32_t picked = 0;
                spill(all, v);
                for (; picks.next < i + lanes.count; picks.step()) {
                    out[picks.run] = all[picks.next - i];
                    picked |= 1u << (picks.next - i);
                }
                v = without(v, picked);
            }
            rest.put(i, v, lanes);
        });
        return largest(most);
    });
}
