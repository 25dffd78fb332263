#include "messages/virtual_events.hpp"

#include <algorithm>
#include <utility>

namespace eldr::messages {

void virtual_events::schedule(std::int64_t due_ns, gate allowed, action run) {
  const key at{std::max(due_ns, now_ns_), random_(), count_++};
  event what{std::move(allowed), std::move(run)};
  switch (what.allowed()) {
    case gate_state::open:
      ready_.emplace(at, std::move(what));
      break;
    case gate_state::held:
      held_.emplace_back(at, std::move(what));
      break;
    case gate_state::void_:
      break;
  }
}

std::optional<std::int64_t> virtual_events::next_due_ns() const {
  if (ready_.empty()) {
    return std::nullopt;
  }
  return std::get<0>(ready_.begin()->first);
}

bool virtual_events::run_next(std::int64_t until_ns) {
  if (ready_.empty() || std::get<0>(ready_.begin()->first) > until_ns) {
    return false;
  }
  const auto first = ready_.extract(ready_.begin());
  set_now(std::get<0>(first.key()));
  first.mapped().run();
  return true;
}

void virtual_events::recheck() {
  // Into locals first: destroying an action may schedule events.
  std::vector<entry> all;
  for (auto& [at, what] : std::exchange(ready_, {})) {
    all.emplace_back(at, std::move(what));
  }
  std::ranges::move(std::exchange(held_, {}), std::back_inserter(all));
  for (auto& [at, what] : all) {
    const auto state = what.allowed();
    if (state == gate_state::held) {
      held_.emplace_back(at, std::move(what));
    } else if (state == gate_state::open) {
      auto& [due_ns, tie, number] = at;
      ready_.emplace(key{std::max(due_ns, now_ns_), tie, number}, std::move(what));
    }
  }
}

std::int64_t virtual_events::draw(std::int64_t low, std::int64_t high) {
  if (high <= low) {
    return low;
  }
  const auto span = static_cast<std::uint64_t>(high - low) + 1;
  return low + static_cast<std::int64_t>(random_() % span);
}

}  // namespace eldr::messages
