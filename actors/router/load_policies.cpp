#include "actors/router/load_policies.hpp"

#include <algorithm>
#include <random>

namespace eldr::actors {

void note_loads(std::span<const decode_candidate> candidates, decision& why) {
  why.count = static_cast<std::uint32_t>(std::min(candidates.size(), decision::candidates_max));
  for (std::uint32_t i = 0; i < why.count; ++i) {
    why.entries[i] = {candidates[i].slot, candidates[i].in_flight, 0, 0, true};
  }
}

namespace {

/// Shared by all: what a policy of load has to say.
class load_policy : public routing_policy {
 public:
  std::size_t choose(const routing_request&, std::span<const decode_candidate> candidates,
                     decision& why) final {
    note_loads(candidates, why);
    why.why = decision::ground::load;
    const auto chosen = pick(candidates);
    why.chosen = static_cast<std::uint32_t>(chosen);
    return chosen;
  }

 protected:
  virtual std::size_t pick(std::span<const decode_candidate>) = 0;
};

class round_robin final : public load_policy {
 public:
  std::string_view name() const noexcept override { return "rr"; }

 protected:
  std::size_t pick(std::span<const decode_candidate> c) override {
    return static_cast<std::size_t>(turn_++ % c.size());
  }

 private:
  std::uint64_t turn_ = 0;
};

class uniform_random final : public load_policy {
 public:
  explicit uniform_random(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "random"; }

 protected:
  std::size_t pick(std::span<const decode_candidate> c) override {
    return draw_below(rng_, c.size());
  }

 private:
  std::mt19937_64 rng_;
};

class shortest_queue final : public load_policy {
 public:
  explicit shortest_queue(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "jsq"; }

 protected:
  std::size_t pick(std::span<const decode_candidate> c) override {
    std::size_t best = 0;
    std::size_t ties = 1;
    for (std::size_t i = 1; i < c.size(); ++i) {
      if (c[i].in_flight < c[best].in_flight) {
        best = i;
        ties = 1;
      } else if (c[i].in_flight == c[best].in_flight && draw_below(rng_, ++ties) == 0) {
        best = i;  // Reservoir sampling: each of the tied is as likely.
      }
    }
    return best;
  }

 private:
  std::mt19937_64 rng_;
};

class power_of_two final : public load_policy {
 public:
  explicit power_of_two(std::uint64_t seed) : rng_(seed) {}
  std::string_view name() const noexcept override { return "p2c"; }

 protected:
  std::size_t pick(std::span<const decode_candidate> c) override {
    if (c.size() == 1) {
      return 0;
    }
    const auto a = draw_below(rng_, c.size());
    auto b = draw_below(rng_, c.size() - 1);
    b += b >= a ? 1 : 0;
    return c[b].in_flight < c[a].in_flight ? b : a;
  }

 private:
  std::mt19937_64 rng_;
};

}  // namespace

std::unique_ptr<routing_policy> make_round_robin() {
  return std::make_unique<round_robin>();
}
std::unique_ptr<routing_policy> make_uniform_random(std::uint64_t seed) {
  return std::make_unique<uniform_random>(seed);
}
std::unique_ptr<routing_policy> make_shortest_queue(std::uint64_t seed) {
  return std::make_unique<shortest_queue>(seed);
}
std::unique_ptr<routing_policy> make_power_of_two(std::uint64_t seed) {
  return std::make_unique<power_of_two>(seed);
}

}  // namespace eldr::actors
