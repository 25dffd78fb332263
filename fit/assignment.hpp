#pragma once
/// Assignment of items to clusters of balanced sizes at least total cost.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace eldr::fit {

/// Assigns every item to a cluster so that each cluster gets floor(items / clusters) or one more,
/// at the least possible total cost under these sizes. `costs` is [items][clusters], magnitudes at
/// most 1e6; differences below 1e-12 count as ties. Returns the cluster of each item. Throws
/// fit_error when there are no clusters, or when costs are not of that form.
///
/// Method: successive shortest augmenting paths. The residual graph needs only one node per
/// cluster (its edge a -> b is the item that moves most cheaply) and one through which the clusters
/// share their extra places, so that an item costs O(clusters^2) a path and not O(items^2).
std::vector<std::uint32_t> assign_balanced(std::span<const double> costs, std::size_t items,
                                           std::size_t clusters);

}  // namespace eldr::fit
