#include "messages/memory_transport.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace eldr::messages::memory {

namespace {

constexpr std::size_t page_bytes = 4096;

class memory_transport final : public transport {
 public:
  memory_transport(memory_network::impl& network, process_ptr process)
      : network_(network), process_(std::move(process)) {}

  /// Without stop() first this is the death of the process.
  ~memory_transport() override { network_.kill(process_); }

  std::span<std::byte> allocate_region(std::size_t bytes) override {
    if (process_->life != process::state::attached) {
      throw std::logic_error("regions are allocated before start()");
    }
    const auto rounded = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(page_bytes, rounded));
    if (bytes == 0 || memory == nullptr) {
      throw std::runtime_error("cannot allocate a memory region of " + std::to_string(bytes) +
                               " bytes");
    }
    std::memset(memory, 0, rounded);
    process_->regions.push_back({{memory, {}}, bytes});
    return {memory, bytes};
  }

  void start(transport_events& events) override { network_.start(process_, events); }
  void dial(const std::string& address) override { network_.dial(process_, address); }
  send_result send(session_id session, outgoing_ptr message) override {
    return network_.send(process_, session, std::move(message));
  }
  void close(session_id session, const std::string& detail) override {
    network_.close(process_, session, detail);
  }
  void get(session_id session, std::uint32_t region, std::vector<get_range> ranges,
           get_callback done) override {
    network_.get(process_, session, region, std::move(ranges), std::move(done));
  }
  void stop() override {
    if (!network_.may_stop()) {
      throw std::logic_error("stop() may not be called from a callback");
    }
    network_.stop(process_);
  }
  transport_counters counters() const override { return process_->counted; }
  const identity& self() const noexcept override { return process_->id; }

 private:
  memory_network::impl& network_;
  process_ptr process_;
};

}  // namespace

std::unique_ptr<transport> make_transport(memory_network::impl& network, process_ptr process) {
  return std::make_unique<memory_transport>(network, std::move(process));
}

}  // namespace eldr::messages::memory
