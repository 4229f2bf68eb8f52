// Work in several threads. They live as long as a call: nothing is left behind that a fork could break.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

namespace gw {

constexpr int MOST_THREADS = 64;

// Elements that are worth a thread; tests make it small.
extern std::atomic<int64_t> grain;

inline int workers_for(int64_t elements, int threads) {
    const int64_t useful = std::min<int64_t>({elements / grain, int64_t(threads), MOST_THREADS});
    return int(std::max<int64_t>(useful, 1));
}

// Calls job(0) to job(workers - 1). A thread that the system does not grant is done without.
template <class Job>
void parallel(int workers, const Job& job) {
    if (workers == 1) return job(0);
    std::thread helpers[MOST_THREADS];
    int granted = 1;
    try {
        for (; granted < workers; ++granted) helpers[granted] = std::thread(job, granted);
    } catch (...) {
    }
    job(0);
    for (int worker = granted; worker < workers; ++worker) job(worker);
    for (int worker = 1; worker < granted; ++worker) helpers[worker].join();
}

struct Span {
    int64_t begin, count;
};

// The part of a worker, cut at multiples of `unit`.
inline Span part_of(int64_t n, int64_t unit, int workers, int worker) {
    const int64_t units = n / unit + (n % unit != 0), share = units / workers, extra = units % workers;
    const auto start = [&](int64_t w) { return std::min(n, unit * (share * w + std::min(w, extra))); };
    return {start(worker), start(worker + 1) - start(worker)};
}

// Calls job(begin, count) for parts that are cut at multiples of `unit`, in so many threads. Each has a job of its own:
// one on the stack of the first thread would share lines of the cache with what that writes there.
template <class Job>
void over_parts(int64_t n, int64_t unit, int workers, const Job& job) {
    parallel(workers, [=](int worker) {
        const Span part = part_of(n, unit, workers, worker);
        if (part.count) job(part.begin, part.count);
    });
}

// The same; returns the largest result.
template <class Job>
uint32_t largest_of(int64_t n, int64_t unit, int workers, const Job& job) {
    std::atomic<uint32_t> largest(0);
    over_parts(n, unit, workers, [&](int64_t begin, int64_t count) {
        const uint32_t mine = job(begin, count);
        uint32_t seen = largest;
        while (mine > seen && !largest.compare_exchange_weak(seen, mine)) {
        }
    });
    return largest;
}

}  // namespace gw
