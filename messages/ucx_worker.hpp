#pragma once
/// UCX's context and worker, the memory registered with them, and the frames that UCX has lent us.

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/frame.hpp"
#include "messages/message_view.hpp"
#include "messages/mpsc_stack.hpp"
#include "messages/transport.hpp"

namespace eldr::messages {

/// How UCX is to be set up. A user's own UCX_* environment wins over all of it.
struct ucx_settings {
  bool shared_memory = false;
  std::string device;  ///< Network device; empty: all.
};

class ucx_worker;

/// A received frame in the buffer where UCX put it.
class ucx_frame final : public frame {
 public:
  /// The segments lie in `data`, which goes back to UCX with the frame.
  ucx_frame(std::shared_ptr<ucx_worker> lender, void* data, std::size_t bytes, session_id session,
            traffic cls, std::span<const kj::ArrayPtr<const capnp::word>> segments)
      : lender_(std::move(lender)),
        data_(data),
        bytes_(bytes),
        session_(session),
        cls_(cls),
        view_(segments) {}

  wire::Message::Reader root() const override { return view_.root(); }
  std::size_t bytes() const noexcept override { return bytes_; }
  std::uint64_t session() const noexcept override { return session_; }
  traffic cls() const noexcept { return cls_; }

  ucx_frame* next = nullptr;  ///< For the list of frames let go of.

 private:
  friend class ucx_worker;
  std::shared_ptr<ucx_worker> lender_;
  void* data_;
  std::size_t bytes_;
  session_id session_;
  traffic cls_;
  message_view view_;
};

/// Owned by the progress thread while it runs. Frames keep it alive: whoever drops the last one
/// after the transport is gone destroys it.
class ucx_worker : public std::enable_shared_from_this<ucx_worker> {
 public:
  /// Throws std::runtime_error.
  explicit ucx_worker(const ucx_settings&);
  ~ucx_worker();
  ucx_worker(const ucx_worker&) = delete;
  ucx_worker& operator=(const ucx_worker&) = delete;

  ucp_worker_h get() const noexcept { return worker_; }
  /// Readable when there may be something to progress, if armed.
  int event_fd() const;
  std::vector<std::byte> address() const;

  struct region {
    ucp_mem_h handle = nullptr;
    std::span<std::byte> memory;
  };
  /// Zeroed and page-aligned, allocated by UCX: over shared memory only such is read one-sided.
  region allocate(std::size_t bytes);
  std::vector<std::byte> pack_key(const region&) const;
  void unmap(const region&) noexcept;

  /// Makes the frame's last owner, on whichever thread, give it back.
  frame_ptr lend(std::unique_ptr<ucx_frame>);
  /// Called when so many frames wait to be given back; from any thread, hence set before frames
  /// are lent.
  void on_many_released(std::uint32_t count, std::function<void()> wake);
  bool has_released() const noexcept { return !released_.empty(); }
  /// Progress thread: gives back what was let go of; `each` sees every frame before.
  template <typename F>
  bool take_released(F&& each) {
    auto* item = released_.take_all();
    if (item == nullptr) {
      return false;
    }
    released_count_.store(0, std::memory_order_relaxed);
    while (item != nullptr) {
      auto* next = item->next;
      each(*item);
      give_back(item);
      item = next;
    }
    return true;
  }

 private:
  void give_back(ucx_frame*) noexcept;
  void release(ucx_frame*) noexcept;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  mpsc_stack<ucx_frame> released_;
  std::atomic<std::uint32_t> released_count_{0};
  std::uint32_t wake_count_ = 1;
  std::function<void()> wake_;
};

/// Throws std::runtime_error(`what` + UCX's word for `status`) unless it is UCS_OK.
void ucx_check(ucs_status_t status, const char* what);

}  // namespace eldr::messages
