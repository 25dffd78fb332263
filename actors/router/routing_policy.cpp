#include "actors/router/routing_policy.hpp"

#include <array>
#include <random>
#include <stdexcept>

namespace eldr::actors {

namespace {

/// Uniform in [0, n), n < 2^32: the same on every standard library, unlike
/// std::uniform_int_distribution.
std::size_t draw(std::mt19937_64& rng, std::size_t n) {
  return static_cast<std::size_t>(((rng() >> 32) * n) >> 32);
}

/// Each worker in turn.
class round_robin final : public routing_policy {
 public:
  std::string_view name() const noexcept override { return "rr"; }
  std::size_t choose(const routing_request&, std::span<const decode_candidate> c) override {
    return static_cast<std::size_t>(turn_++ % c.size());
  }

 private:
  std::uint64_t turn_ = 0;
};

class uniform_random final : public routing_policy {
 public:
  explicit uniform_random(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "random"; }
  std::size_t choose(const routing_request&, std::span<const decode_candidate> c) override {
    return draw(rng_, c.size());
  }

 private:
  std::mt19937_64 rng_;
};

/// Join the shortest queue; ties by a seeded stream.
class shortest_queue final : public routing_policy {
 public:
  explicit shortest_queue(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "jsq"; }
  std::size_t choose(const routing_request&, std::span<const decode_candidate> c) override {
    std::size_t best = 0;
    std::size_t ties = 1;
    for (std::size_t i = 1; i < c.size(); ++i) {
      if (c[i].in_flight < c[best].in_flight) {
        best = i;
        ties = 1;
      } else if (c[i].in_flight == c[best].in_flight && draw(rng_, ++ties) == 0) {
        best = i;  // Reservoir sampling: each of the tied is as likely.
      }
    }
    return best;
  }

 private:
  std::mt19937_64 rng_;
};

/// The less loaded of two distinct random ones.
class power_of_two final : public routing_policy {
 public:
  explicit power_of_two(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "p2c"; }
  std::size_t choose(const routing_request&, std::span<const decode_candidate> c) override {
    if (c.size() == 1) {
      return 0;
    }
    const auto a = draw(rng_, c.size());
    auto b = draw(rng_, c.size() - 1);
    b += b >= a ? 1 : 0;
    return c[b].in_flight < c[a].in_flight ? b : a;
  }

 private:
  std::mt19937_64 rng_;
};

constexpr std::array<std::string_view, 4> names{"rr", "random", "jsq", "p2c"};

}  // namespace

std::span<const std::string_view> policy_names() {
  return names;
}

std::unique_ptr<routing_policy> make_policy(std::string_view name, std::uint64_t seed) {
  if (name == "rr") {
    return std::make_unique<round_robin>();
  }
  if (name == "random") {
    return std::make_unique<uniform_random>(seed);
  }
  if (name == "jsq") {
    return std::make_unique<shortest_queue>(seed);
  }
  if (name == "p2c") {
    return std::make_unique<power_of_two>(seed);
  }
  std::string known;
  for (auto n : names) {
    known += (known.empty() ? "" : ", ") + std::string(n);
  }
  throw std::invalid_argument("unknown routing policy '" + std::string(name) + "'; known are " +
                              known);
}

}  // namespace eldr::actors
