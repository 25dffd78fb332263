#pragma once
/// The band: workers about as similar as the best, of which the least loaded is taken. Pure.
/// Source: ELDR, arXiv 2607.00466; the widening from its published implementation.

#include <cstdint>
#include <limits>
#include <span>

namespace eldr::actors {

struct band_entry {
  float similarity = 0;  ///< NaN: has no slot, joins only if no other candidate has one.
  std::uint32_t load = 0;
  std::int32_t slot = -1;
  bool in_band = false;  ///< Out.
};

struct band_choice {
  std::size_t chosen = 0;
  std::uint32_t size = 0;  ///< Workers in the band, after widening.
  bool widened = false;
};

/// Marks the band { k : s_k >= max s - tau } and chooses from it: least load, then higher
/// similarity, then lower slot. If tau > 0 and fewer than candidates_min are in it, it is widened
/// to that many nearest (ties in similarity: the lower slot). tau = 0 is pure top-1.
inline band_choice choose_in_band(std::span<band_entry> entries, float tau,
                                  std::uint32_t candidates_min) {
  const auto nearer = [&](const band_entry& a, const band_entry& b) {
    return a.similarity > b.similarity || (a.similarity == b.similarity && a.slot < b.slot);
  };
  bool any_slot = false;
  for (const auto& e : entries) {
    any_slot = any_slot || e.similarity == e.similarity;
  }
  band_choice out;
  const band_entry* best = nullptr;
  for (auto& e : entries) {
    const bool has_slot = e.similarity == e.similarity;
    if (!any_slot) {
      e.similarity = 0;
    }
    if ((has_slot || !any_slot) && (best == nullptr || nearer(e, *best))) {
      best = &e;
    }
  }
  std::uint32_t eligible = 0;
  for (auto& e : entries) {
    const bool counts = e.similarity == e.similarity;
    eligible += counts ? 1 : 0;
    // Exactly the best one for tau = 0, whatever else is as similar.
    e.in_band = counts && (tau > 0 ? e.similarity >= best->similarity - tau : &e == best);
    out.size += e.in_band ? 1 : 0;
  }
  while (tau > 0 && out.size < candidates_min && out.size < eligible) {
    band_entry* next = nullptr;
    for (auto& e : entries) {
      if (!e.in_band && e.similarity == e.similarity && (next == nullptr || nearer(e, *next))) {
        next = &e;
      }
    }
    next->in_band = true;
    ++out.size;
    out.widened = true;
  }
  const band_entry* chosen = nullptr;
  for (const auto& e : entries) {
    if (e.in_band && (chosen == nullptr || e.load < chosen->load ||
                      (e.load == chosen->load && nearer(e, *chosen)))) {
      chosen = &e;
    }
  }
  out.chosen = static_cast<std::size_t>(chosen - entries.data());
  return out;
}

}  // namespace eldr::actors
