#pragma once
/// Policies that look at load only: the baselines.

#include <cstdint>
#include <memory>

#include "actors/router/routing_policy.hpp"

namespace eldr::actors {

/// Each worker in turn.
std::unique_ptr<routing_policy> make_round_robin();
std::unique_ptr<routing_policy> make_uniform_random(std::uint64_t seed);
/// Join the shortest queue; ties by a seeded stream.
std::unique_ptr<routing_policy> make_shortest_queue(std::uint64_t seed);
/// The less loaded of two distinct random workers.
std::unique_ptr<routing_policy> make_power_of_two(std::uint64_t seed);

/// Enters slots and loads of the candidates into a decision.
void note_loads(std::span<const decode_candidate>, decision&);

}  // namespace eldr::actors
