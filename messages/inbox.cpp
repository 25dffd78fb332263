#include "messages/inbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace eldr::messages {

inbox::inbox() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) {
    throw std::runtime_error(std::string("cannot make an event descriptor: ") +
                             std::strerror(errno));
  }
}

inbox::~inbox() {
  for (auto* item = take_all(); item != nullptr;) {
    delete std::exchange(item, item->next);
  }
}

void inbox::signal() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  (void)!::write(event_.get(), &one, sizeof(one));
}

void inbox::clear() noexcept {
  std::uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof(count));
}

}  // namespace eldr::messages
