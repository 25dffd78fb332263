#pragma once
/// The router's side of the artifact: from a signature as it came off the wire to its similarity
/// with every slot.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fit/artifact.hpp"

namespace eldr::fit {

/// Which instructions to use. Both give the same bits.
enum class instruction_path : std::uint8_t { portable, avx2 };

/// The widest path that this processor has.
instruction_path best_instruction_path() noexcept;

enum class centroid_set : std::uint8_t { balanced, vanilla };

/// Scores signatures against the centroids of an artifact, which it copies. Scoring allocates
/// nothing; it uses memory of the object, so one thread at a time.
class slot_scorer {
 public:
  explicit slot_scorer(const artifact& routing, centroid_set centroids = centroid_set::balanced,
                       instruction_path path = best_instruction_path());

  std::uint32_t slots() const noexcept { return slots_; }
  /// Size of a signature on the wire: uint16 little-endian [layers][experts].
  std::size_t wire_bytes() const noexcept { return wire_bytes_; }

  /// Cosine similarity of the signature with each slot's centroid into `similarities`, one per
  /// slot. False, and zeros, when the transformed signature is zero and so has no direction.
  /// Throws fit_error when a size is wrong.
  bool score(std::span<const std::byte> signature, std::span<float> similarities);

 private:
  struct aligned_delete {
    void operator()(float* memory) const noexcept;
  };
  using aligned_floats = std::unique_ptr<float[], aligned_delete>;
  static aligned_floats allocate(std::size_t count);

  void copy_weights(const artifact& routing);
  void copy_centroids(const std::vector<float>& centroids, std::uint32_t experts);

  representation kind_;
  instruction_path path_;
  std::uint32_t slots_;
  std::uint32_t experts_;
  std::size_t wire_bytes_;
  std::size_t stride_;                      // Experts of a layer, rounded up to whole vectors.
  std::size_t cells_;                       // Masked layers times stride.
  std::vector<std::size_t> layer_offsets_;  // Of masked layers on the wire, in bytes.
  aligned_floats weights_;                  // [masked layers][stride]
  aligned_floats features_;                 // [masked layers][stride], of the signature at hand
  // [groups of 8 slots][vectors of a feature vector][8 slots][8 cells]: read once, front to back.
  aligned_floats centroids_;
  aligned_floats dots_;  // [slots rounded up to whole groups]
};

}  // namespace eldr::fit
