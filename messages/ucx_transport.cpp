#include "messages/ucx_transport.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "messages/ucx_engine.hpp"

namespace eldr::messages {

namespace {

/// Anything else that the progress thread is to do.
struct task final : command {
  explicit task(std::function<void(ucx_engine&)> body_) : body(std::move(body_)) {}
  void run(ucx_engine& engine, std::unique_ptr<command>) override { body(engine); }
  std::function<void(ucx_engine&)> body;
};

/// The network that a node is on: that of the address where it listens, or of its way to a peer.
std::string device_for(const identity& id, const ucx_options& options) {
  if (!id.address.empty()) {
    return device_of(resolve(id.address));
  }
  const auto towards = options.route_to.empty() ? "127.0.0.1:1" : options.route_to;
  return device_of(source_towards(resolve(towards)));
}

void check(const identity& id, const ucx_options& options) {
  if (options.token.empty()) {
    throw std::runtime_error("the cluster's token is empty; nodes need one to trust each other");
  }
  if (id.node.empty() || id.incarnation == 0) {
    throw std::runtime_error("a node needs a name and an incarnation other than 0");
  }
  const auto& limits = options.limits;
  if (limits.frame_bytes_max == 0 || limits.credit_frames == 0 || limits.gets_in_flight == 0 ||
      limits.reserved_frames_max == 0) {
    throw std::runtime_error("a transport's limits must be greater than 0");
  }
}

class ucx_transport final : public transport {
 public:
  ucx_transport(identity id, ucx_options options)
      : self_(std::move(id)),
        options_(std::move(options)),
        worker_(std::make_shared<ucx_worker>(
            ucx_settings{options_.shared_memory, device_for(self_, options_)})),
        common_(std::make_shared<ucx_engine::shared>()) {
    worker_->on_many_released(std::max(1u, options_.limits.credit_frames / 4),
                              [common = common_] { common->commands.wake(); });
  }

  ~ucx_transport() override {
    stop();
    engine_.reset();
    for (const auto& region : regions_) {
      worker_->unmap(region);
    }
  }

  std::span<std::byte> allocate_region(std::size_t bytes) override {
    if (engine_ != nullptr) {
      throw std::logic_error("regions are allocated before start()");
    }
    if (bytes == 0 || regions_.size() == regions_max) {
      throw std::runtime_error("a node has up to " + std::to_string(regions_max) +
                               " memory regions of at least one byte");
    }
    regions_.push_back(worker_->allocate(bytes));
    return regions_.back().memory;
  }

  void start(transport_events& events) override {
    if (engine_ != nullptr) {
      throw std::logic_error("a transport starts once");
    }
    ucx_engine::setup with{self_,   options_, describe_regions(), file_descriptor(), worker_,
                           common_, &events};
    if (!self_.address.empty()) {
      with.listener = listen_at(self_.address);
      const auto port = split_address(to_string(local_address(with.listener))).second;
      // Peers are told the host as configured; only a port of 0 was a question.
      self_.address.replace(self_.address.rfind(':') + 1, std::string::npos, port);
      with.self = self_;
    }
    engine_ = std::make_unique<ucx_engine>(std::move(with));
    thread_ = std::thread([this] { engine_->run(); });
  }

  void dial(const std::string& address) override {
    post([address](ucx_engine& engine) { engine.dial(address); });
  }

  send_result send(session_id session, outgoing_ptr message) override {
    if (!common_->table.is_open(session)) {
      return send_result::no_session;
    }
    auto item = std::make_unique<send_item>();
    const auto kind = message->root().which();
    item->session = session;
    item->cls = traffic_class(kind);
    item->keeps_awake = kind != wire::Message::HEARTBEAT;
    item->bytes = message->bytes();
    if (item->bytes > options_.limits.frame_bytes_max ||
        message->arena().getSegmentsForOutput().size() > segments_max) {
      return end(session, end_reason::overflow, "a message was too large", send_result::too_large);
    }
    item->content = std::move(message);
    item->share = queue_share(common_->table.slot_of(session), item->cls, item->bytes);
    if (item->share.exceeds(options_.limits)) {
      return end(session, end_reason::overflow, "the queue to the peer is full",
                 send_result::overflow);
    }
    common_->commands.push(std::move(item));
    return send_result::queued;
  }

  void close(session_id session, const std::string& detail) override {
    end(session, end_reason::closed_here, detail, send_result::queued);
  }

  void get(session_id session, std::uint32_t region, std::vector<get_range> ranges,
           get_callback done) override {
    auto item = std::make_unique<get_item>();
    item->session = session;
    item->region = region;
    item->pieces = std::move(ranges);
    item->done = std::move(done);
    common_->commands.push(std::move(item));
  }

  void stop() override {
    if (std::this_thread::get_id() == thread_.get_id()) {
      throw std::logic_error("stop() may not be called from a callback");
    }
    if (thread_.joinable()) {
      post([](ucx_engine& engine) { engine.request_stop(); });
      thread_.join();
    }
  }

  transport_counters counters() const override { return common_->counters.snapshot(); }
  const identity& self() const noexcept override { return self_; }

 private:
  void post(std::function<void(ucx_engine&)> body) {
    common_->commands.push(std::make_unique<task>(std::move(body)));
  }

  /// Of several that end a session at once, one does.
  send_result end(session_id session, end_reason reason, const std::string& detail,
                  send_result result) {
    if (!common_->table.close(session)) {
      return send_result::no_session;
    }
    post([=](ucx_engine& engine) { engine.end(session, reason, detail); });
    return result;
  }

  std::vector<region_descriptor> describe_regions() const {
    std::vector<region_descriptor> result;
    for (const auto& region : regions_) {
      result.push_back({static_cast<std::uint32_t>(result.size()), region.memory.size(),
                        reinterpret_cast<std::uint64_t>(region.memory.data()),
                        worker_->pack_key(region)});
    }
    return result;
  }

  identity self_;
  ucx_options options_;
  std::shared_ptr<ucx_worker> worker_;
  std::shared_ptr<ucx_engine::shared> common_;
  std::vector<ucx_worker::region> regions_;
  std::unique_ptr<ucx_engine> engine_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<transport> make_ucx_transport(identity id, ucx_options options) {
  check(id, options);
  return std::make_unique<ucx_transport>(std::move(id), std::move(options));
}

}  // namespace eldr::messages
