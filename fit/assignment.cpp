#include "fit/assignment.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "fit/error.hpp"

namespace eldr::fit {
namespace {

// Costs are whole multiples of 2^-40: sums are exact, and rounding can make no negative cycle.
constexpr double cost_scale = 0x1p40;
constexpr double cost_max = 1e6;
constexpr std::int64_t unreachable = std::numeric_limits<std::int64_t>::max() / 4;
constexpr std::uint32_t nobody = std::numeric_limits<std::uint32_t>::max();

class balanced_flow {
 public:
  balanced_flow(std::span<const double> costs, std::size_t items, std::size_t clusters)
      : clusters_(clusters),
        full_size_(items / clusters),
        extras_free_(items % clusters),
        costs_(costs.size()),
        members_(clusters),
        cluster_of_(items, nobody),
        position_of_(items),
        cheapest_(clusters * clusters),
        distance_(clusters + 1),
        parent_(clusters + 1) {
    std::ranges::transform(costs, costs_.begin(), [](double cost) {
      if (!(std::abs(cost) <= cost_max)) {
        throw fit_error("An assignment cost is not a number or too large.");
      }
      return std::llround(cost * cost_scale);
    });
  }

  std::vector<std::uint32_t> solve() {
    for (std::uint32_t item = 0; item < cluster_of_.size(); ++item) {
      insert(item);
    }
    return std::move(cluster_of_);
  }

 private:
  /// The cheapest move out of one cluster into another.
  struct cheapest_move {
    std::int64_t cost = unreachable;
    std::uint32_t item = nobody;
  };

  std::int64_t cost(std::uint32_t item, std::size_t cluster) const {
    return costs_[item * clusters_ + cluster];
  }
  // The node of the extra places, after those of the clusters.
  std::size_t extra_node() const { return clusters_; }
  bool has_extra(std::size_t cluster) const { return members_[cluster].size() > full_size_; }
  bool has_room(std::size_t cluster) const { return members_[cluster].size() < full_size_; }

  void insert(std::uint32_t item) {
    const auto first = costs_.begin() + static_cast<std::ptrdiff_t>(item * clusters_);
    const auto nearest = static_cast<std::size_t>(
        std::min_element(first, first + static_cast<std::ptrdiff_t>(clusters_)) - first);
    if (has_room(nearest)) {
      // No path is shorter: one that passed through the nearest cluster would show that the
      // present assignment can be improved.
      add(item, nearest);
      return;
    }
    find_paths(item);
    apply_path(item, nearest_end());
  }

  /// Bellman and Ford from the item over clusters and the extra node. Few rounds suffice: paths
  /// are short, and their number is bounded by the number of nodes.
  void find_paths(std::uint32_t item) {
    for (std::size_t cluster = 0; cluster < clusters_; ++cluster) {
      distance_[cluster] = cost(item, cluster);
      parent_[cluster] = nobody;
    }
    distance_[extra_node()] = unreachable;
    bool changed = true;
    while (changed) {
      changed = false;
      for (std::size_t from = 0; from < clusters_; ++from) {
        changed |= relax_from(from);
      }
      for (std::size_t to = 0; to < clusters_; ++to) {
        // A cluster that hands its extra place on must then give an item away.
        changed |= has_extra(to) && relax(extra_node(), to, 0);
      }
    }
  }

  bool relax_from(std::size_t from) {
    bool changed = false;
    for (std::size_t to = 0; to < clusters_; ++to) {
      const std::int64_t move = cheapest_[from * clusters_ + to].cost;
      changed |= move < unreachable && relax(from, to, move);
    }
    if (!has_extra(from)) {
      changed |= relax(from, extra_node(), 0);
    }
    return changed;
  }

  bool relax(std::size_t from, std::size_t to, std::int64_t length) {
    if (distance_[from] + length >= distance_[to]) {
      return false;
    }
    distance_[to] = distance_[from] + length;
    parent_[to] = static_cast<std::uint32_t>(from);
    return true;
  }

  /// The nearest node at which a path may end: a cluster with room, or a free extra place.
  std::size_t nearest_end() const {
    std::size_t best = clusters_ + 1;
    for (std::size_t node = 0; node <= clusters_; ++node) {
      const bool end = node == extra_node() ? extras_free_ > 0 : has_room(node);
      if (end && (best > clusters_ || distance_[node] < distance_[best])) {
        best = node;
      }
    }
    return best;
  }

  void apply_path(std::uint32_t item, std::size_t end) {
    if (end == extra_node()) {
      --extras_free_;
    }
    moves_.clear();
    std::size_t node = end;
    for (; parent_[node] != nobody; node = parent_[node]) {
      const std::size_t from = parent_[node];
      if (from != extra_node() && node != extra_node()) {
        moves_.emplace_back(cheapest_[from * clusters_ + node].item, node);
      }
    }
    for (const auto& [moved, to] : moves_) {
      remove(moved);
      add(moved, to);
    }
    add(item, node);
  }

  void add(std::uint32_t item, std::size_t cluster) {
    cluster_of_[item] = static_cast<std::uint32_t>(cluster);
    position_of_[item] = static_cast<std::uint32_t>(members_[cluster].size());
    members_[cluster].push_back(item);
    for (std::size_t to = 0; to < clusters_; ++to) {
      offer(item, cluster, to);
    }
  }

  void remove(std::uint32_t item) {
    const std::size_t cluster = cluster_of_[item];
    std::vector<std::uint32_t>& members = members_[cluster];
    position_of_[members.back()] = position_of_[item];
    members[position_of_[item]] = members.back();
    members.pop_back();
    for (std::size_t to = 0; to < clusters_; ++to) {
      cheapest_move& move = cheapest_[cluster * clusters_ + to];
      if (move.item == item) {
        move = {};
        for (const std::uint32_t other : members) {
          offer(other, cluster, to);
        }
      }
    }
  }

  void offer(std::uint32_t item, std::size_t from, std::size_t to) {
    cheapest_move& move = cheapest_[from * clusters_ + to];
    const std::int64_t difference = cost(item, to) - cost(item, from);
    if (from != to && difference < move.cost) {
      move = {difference, item};
    }
  }

  std::size_t clusters_;
  std::size_t full_size_;
  std::size_t extras_free_;
  std::vector<std::int64_t> costs_;                  // [items][clusters]
  std::vector<std::vector<std::uint32_t>> members_;  // [clusters]
  std::vector<std::uint32_t> cluster_of_;            // [items]
  std::vector<std::uint32_t> position_of_;           // [items], within its cluster's members
  std::vector<cheapest_move> cheapest_;              // [from][to]
  std::vector<std::int64_t> distance_;               // [clusters + 1]
  std::vector<std::uint32_t> parent_;                // [clusters + 1]
  std::vector<std::pair<std::uint32_t, std::size_t>> moves_;
};

}  // namespace

std::vector<std::uint32_t> assign_balanced(std::span<const double> costs, std::size_t items,
                                           std::size_t clusters) {
  if (clusters == 0 || costs.size() != items * clusters) {
    throw fit_error("An assignment needs at least one cluster and a cost for every item in it.");
  }
  return balanced_flow(costs, items, clusters).solve();
}

}  // namespace eldr::fit
