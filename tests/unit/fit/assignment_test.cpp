#include "fit/assignment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fit/error.hpp"
#include "fit/random.hpp"

namespace eldr::fit {
namespace {

using matrix = std::vector<std::vector<double>>;

/// The plain Hungarian algorithm with potentials for a square matrix; returns the least total cost.
double hungarian(const matrix& cost) {
  const std::size_t n = cost.size();
  std::vector<double> row_potential(n + 1, 0), column_potential(n + 1, 0);
  std::vector<std::size_t> row_of(n + 1, 0), previous(n + 1, 0);
  for (std::size_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    std::size_t column = 0;
    std::vector<double> slack(n + 1, std::numeric_limits<double>::infinity());
    std::vector<bool> used(n + 1, false);
    do {
      used[column] = true;
      std::size_t next = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t j = 1; j <= n; ++j) {
        if (used[j]) {
          continue;
        }
        const double reduced =
            cost[row_of[column] - 1][j - 1] - row_potential[row_of[column]] - column_potential[j];
        if (reduced < slack[j]) {
          slack[j] = reduced;
          previous[j] = column;
        }
        if (slack[j] < least) {
          least = slack[j];
          next = j;
        }
      }
      for (std::size_t j = 0; j <= n; ++j) {
        if (used[j]) {
          row_potential[row_of[j]] += least;
          column_potential[j] -= least;
        } else {
          slack[j] -= least;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = previous[column]) {
      row_of[column] = row_of[previous[column]];
    }
  }
  return -column_potential[0];
}

/// The balanced problem as a square one: every cluster has floor(N / K) columns of its own and one
/// more; dummy rows fill the columns that stay empty, and only the additional ones are open to
/// them.
double balanced_optimum(const std::vector<double>& costs, std::size_t items, std::size_t clusters) {
  const std::size_t full = items / clusters;
  const std::size_t columns = clusters * (full + 1);
  constexpr double forbidden = 1e6;
  matrix square(columns, std::vector<double>(columns, 0));
  for (std::size_t row = 0; row < columns; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      const bool additional = column % (full + 1) == full;
      square[row][column] = row < items  ? costs[row * clusters + column / (full + 1)]
                            : additional ? 0
                                         : forbidden;
    }
  }
  return hungarian(square);
}

void expect_balanced(const std::vector<std::uint32_t>& assigned, std::size_t clusters) {
  std::vector<std::size_t> sizes(clusters, 0);
  for (const std::uint32_t cluster : assigned) {
    ASSERT_LT(cluster, clusters);
    ++sizes[cluster];
  }
  for (const std::size_t size : sizes) {
    EXPECT_GE(size, assigned.size() / clusters);
    EXPECT_LE(size, (assigned.size() + clusters - 1) / clusters);
  }
}

double total_cost(const std::vector<double>& costs, const std::vector<std::uint32_t>& assigned,
                  std::size_t clusters) {
  double total = 0;
  for (std::size_t i = 0; i < assigned.size(); ++i) {
    total += costs[i * clusters + assigned[i]];
  }
  return total;
}

TEST(assign_balanced, equals_the_hungarian_optimum_on_random_instances) {
  random_source random(11);
  for (int instance = 0; instance < 200; ++instance) {
    const std::size_t clusters = 1 + random.below(7);
    const std::size_t items = 1 + random.below(45);
    // Every third instance has few distinct costs and so many ties; every fifth is skewed, so that
    // nearly all items want the same cluster.
    const bool ties = instance % 3 == 0;
    const bool skewed = instance % 5 == 0;
    std::vector<double> costs(items * clusters);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      costs[i] = ties ? static_cast<double>(random.below(4)) : random.unit();
      costs[i] += skewed && i % clusters == 0 ? -2 : 0;
    }
    const auto assigned = assign_balanced(costs, items, clusters);
    ASSERT_EQ(assigned.size(), items);
    expect_balanced(assigned, clusters);
    EXPECT_NEAR(total_cost(costs, assigned, clusters), balanced_optimum(costs, items, clusters),
                1e-9)
        << "instance " << instance << ": " << items << " items, " << clusters << " clusters";
  }
}

TEST(assign_balanced, with_as_many_clusters_as_items_is_a_matching) {
  const std::vector<double> costs{5, 1, 9,  //
                                  1, 2, 9,  //
                                  9, 9, 0};
  EXPECT_EQ(assign_balanced(costs, 3, 3), (std::vector<std::uint32_t>{1, 0, 2}));
}

TEST(assign_balanced, keeps_sizes_at_scale) {
  random_source random(5);
  std::vector<double> costs(1000 * 16);
  std::ranges::generate(costs, [&random] { return random.unit(); });
  expect_balanced(assign_balanced(costs, 1000, 16), 16);
}

TEST(assign_balanced, of_nothing_is_nothing) {
  EXPECT_TRUE(assign_balanced({}, 0, 3).empty());
}

TEST(assign_balanced, refuses_costs_that_are_no_costs) {
  EXPECT_THROW(assign_balanced({}, 0, 0), fit_error);
  const std::vector<double> short_costs{1, 2, 3};
  EXPECT_THROW(assign_balanced(short_costs, 2, 2), fit_error);
  const std::vector<double> nan{1, std::nan("")};
  EXPECT_THROW(assign_balanced(nan, 1, 2), fit_error);
  const std::vector<double> huge{1, 1e300};
  EXPECT_THROW(assign_balanced(huge, 1, 2), fit_error);
}

}  // namespace
}  // namespace eldr::fit
