#pragma once
/// A loop over a few threads. Tasks write to places of their own, so results do not depend on the
/// number of threads.

#include <cstddef>
#include <functional>

namespace eldr::fit {

/// `wanted` threads, or as many as the machine has (at most 16) when it is 0.
unsigned thread_count(unsigned wanted) noexcept;

/// Calls task(i) once for every i < count, from up to `threads` threads, this one included. The
/// first exception of a task is thrown again here, after all threads have stopped.
void parallel_for(std::size_t count, unsigned threads,
                  const std::function<void(std::size_t)>& task);

}  // namespace eldr::fit
