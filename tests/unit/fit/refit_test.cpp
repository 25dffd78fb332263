#include "fit/refit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fit/error.hpp"
#include "fit/fit.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

TEST(match_centroids, undoes_a_permutation) {
  const std::vector<float> before{1, 0, 0, 0, 1, 0, 0, 0, 1};
  const std::vector<float> after{0, 0, 1, 1, 0, 0, 0, 1, 0};
  EXPECT_THAT(match_centroids(before, after, 3), ::testing::ElementsAre(1, 2, 0));
  EXPECT_THROW(match_centroids(before, after, 2), fit_error);
  EXPECT_THROW(match_centroids(before, {}, 3), fit_error);
}

TEST(refit_centroids, of_the_same_traffic_leave_every_slot_where_it_was) {
  const auto counts = testing::synthetic_counts({.requests = 80});
  for (const double gain : {-2.0, 2.0}) {  // With a mask, and without.
    const auto routing = fit_routing(counts, {.slots = 4, .mask_gain_min = gain});
    const auto fresh = refit_centroids(routing, counts.prefill, {.kmeans_seeds = 5});
    ASSERT_TRUE(fresh.has_value());
    ASSERT_EQ(fresh->size(), routing.centroids.size());
    const std::size_t width = fresh->size() / 4;
    for (std::size_t slot = 0; slot < 4; ++slot) {
      double cosine = 0, norm = 0;
      for (std::size_t i = slot * width; i < (slot + 1) * width; ++i) {
        cosine += (*fresh)[i] * routing.centroids[i];
        norm += (*fresh)[i] * (*fresh)[i];
      }
      EXPECT_NEAR(norm, 1, 1e-5);
      EXPECT_GT(cosine, 0.97);
    }
  }
}

TEST(refit_centroids, keep_the_idf_weights_of_the_artifact) {
  const auto counts = testing::synthetic_counts({.requests = 40});
  auto routing = fit_routing(counts, {.slots = 2});
  routing.kind = representation::count_idf;
  routing.mask = {1};
  routing.weights.assign(routing.experts, 1.0f);
  routing.weights[3] = 0;
  routing.centroids.assign(2 * routing.experts, 0.25f);
  const auto fresh = refit_centroids(routing, counts.prefill, {});
  ASSERT_TRUE(fresh.has_value());
  EXPECT_EQ((*fresh)[3], 0);
  EXPECT_EQ((*fresh)[routing.experts + 3], 0);
}

TEST(refit_centroids, wait_for_as_many_usable_signatures_as_slots) {
  const auto counts = testing::synthetic_counts({.requests = 40});
  const auto routing = fit_routing(counts, {.slots = 4});
  std::vector<std::uint16_t> window(counts.prefill.begin(),
                                    counts.prefill.begin() + std::ssize(counts.prefill) / 10);
  EXPECT_TRUE(refit_centroids(routing, window, {}).has_value());  // Four of them.
  std::fill_n(window.begin(), counts.cells(), std::uint16_t{0});
  EXPECT_FALSE(refit_centroids(routing, window, {}).has_value());
  EXPECT_FALSE(refit_centroids(routing, {}, {}).has_value());
  window.pop_back();
  EXPECT_THROW(refit_centroids(routing, window, {}), fit_error);
}

}  // namespace
}  // namespace eldr::fit
