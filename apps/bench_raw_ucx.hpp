#pragma once
/// UCX with nothing above it: the floor that messages and reads are held against. Set up and waited
/// for exactly as the transport does it.

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "messages/transport.hpp"
#include "messages/ucx_worker.hpp"

namespace eldr::apps {

/// One end of a pair. Used by one thread.
class raw_ucx {
 public:
  /// On loopback. Throws std::runtime_error, as all functions do when UCX reports an error or the
  /// peer does not answer for some seconds.
  explicit raw_ucx(bool shared_memory);
  ~raw_ucx();
  raw_ucx(const raw_ucx&) = delete;
  raw_ucx& operator=(const raw_ucx&) = delete;

  std::vector<std::byte> address() const { return worker_->address(); }
  /// Once, with the address of the other end.
  void connect(std::span<const std::byte> address);

  /// Memory that the other end may read; once.
  std::span<std::byte> allocate(std::size_t bytes);
  std::vector<std::byte> key() const { return worker_->pack_key(region_); }
  /// What get() reads from: address and key of the other end's memory.
  void read_from(std::uint64_t address, std::span<const std::byte> key);

  /// Answers every message with one of its size, and reads, until `stop_fd` can be read.
  void serve(int stop_fd);
  /// Round-trip times of `count` messages, one after the other, in microseconds.
  std::vector<double> ping(std::size_t bytes, std::size_t count);
  /// Time of reading `ranges` with so many reads in flight, in seconds.
  double get(std::span<const messages::get_range> ranges, std::uint32_t in_flight_max);

 private:
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_length,
                                 void* data, std::size_t length, const ucp_am_recv_param_t*);
  static void on_sent(void* request, ucs_status_t, void* self);
  static void on_got(void* request, ucs_status_t, void* self);
  static void on_error(void* self, ucp_ep_h, ucs_status_t);
  void send(std::size_t bytes);
  /// One round of the transport's wait: progress, else yield, else sleep. True if `stop_fd` can be
  /// read after a sleep.
  bool turn(int stop_fd);
  template <class Done>
  void wait_until(Done done);
  void note(ucs_status_t status);
  void check_status() const;

  std::shared_ptr<messages::ucx_worker> worker_;
  messages::ucx_worker::region region_;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h remote_key_ = nullptr;
  std::uint64_t remote_address_ = 0;
  std::vector<std::byte> payload_;
  std::size_t received_ = 0;        ///< Messages, ever.
  std::size_t received_bytes_ = 0;  ///< Of the last one.
  std::uint32_t sends_in_flight_ = 0;
  std::uint32_t gets_in_flight_ = 0;
  std::int64_t turned_ns_ = 0;  ///< Time of the last turn, and of the last with something to do.
  std::int64_t active_ns_ = 0;
  ucs_status_t status_ = UCS_OK;  ///< The first error.
};

}  // namespace eldr::apps
