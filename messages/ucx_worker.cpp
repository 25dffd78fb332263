#include "messages/ucx_worker.hpp"

#include <spdlog/spdlog.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace eldr::messages {

namespace {

struct setting {
  const char* environment;  // What a user would set instead.
  const char* key;          // UCX wants a transport's own settings without its name.
  std::string value;
};

std::vector<setting> settings_for(const ucx_settings& settings) {
  std::vector<setting> result = {
      {"UCX_TLS", "TLS", settings.shared_memory ? "tcp,sm" : "tcp"},
      // Larger messages would be overtaken by later ones: frames are bounded instead.
      {"UCX_RNDV_THRESH", "RNDV_THRESH", "inf"},
      // Two to four times the bandwidth of gets over the default of 8 KiB.
      {"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", "256K"},
      {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", "256K"},
      {"UCX_TCP_KEEPIDLE", "KEEPIDLE", "1s"},
      {"UCX_TCP_KEEPINTVL", "KEEPINTVL", "1s"},
      {"UCX_TCP_KEEPCNT", "KEEPCNT", "3"},
  };
  if (settings.shared_memory) {
    // Without it endpoints that report errors do without shared memory.
    result.push_back({"UCX_MM_ERROR_HANDLING", "ERROR_HANDLING", "y"});
  }
  if (!settings.device.empty()) {
    // By default UCX listens on every interface.
    result.push_back({"UCX_NET_DEVICES", "NET_DEVICES", settings.device});
  }
  return result;
}

using config_ptr = std::unique_ptr<ucp_config_t, void (*)(ucp_config_t*)>;

config_ptr make_config(const ucx_settings& settings) {
  ucp_config_t* raw = nullptr;
  ucx_check(ucp_config_read(nullptr, nullptr, &raw), "cannot read UCX's configuration");
  config_ptr config(raw, ucp_config_release);
  for (const auto& [environment, key, value] : settings_for(settings)) {
    if (std::getenv(environment) == nullptr) {
      ucx_check(ucp_config_modify(config.get(), key, value.c_str()), key);
    }
  }
  return config;
}

/// UCX's own lines are for those who debug UCX: what matters of them comes back as a status, and
/// endings of its peers are everyday events here.
ucs_log_func_rc_t log_quietly(const char* file, unsigned line, const char* function,
                              ucs_log_level_t level, const ucs_log_component_config_t* component,
                              const char* format, va_list arguments) {
  if (level == UCS_LOG_LEVEL_FATAL) {
    return ucs_log_default_handler(file, line, function, level, component, format, arguments);
  }
  std::array<char, 512> text;
  std::vsnprintf(text.data(), text.size(), format, arguments);
  spdlog::debug("UCX: {}", text.data());
  return UCS_LOG_FUNC_RC_STOP;
}

void quieten_ucx() {
  // UCX keeps its log handlers per process, so this does too.
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) {
      ucs_log_push_handler(log_quietly);
    }
  });
}

}  // namespace

void ucx_check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    throw std::runtime_error(std::string(what) + ": UCX says \"" + ucs_status_string(status) +
                             "\"");
  }
}

ucx_worker::ucx_worker(const ucx_settings& settings) {
  quieten_ucx();
  const auto config = make_config(settings);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  ucx_check(ucp_init(&params, config.get(), &context_), "cannot initialise UCX");
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Made here, used by the progress thread: one thread at a time.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  const auto status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    ucp_cleanup(context_);
    ucx_check(status, "cannot create a UCX worker (check UCX_TLS and UCX_NET_DEVICES)");
  }
}

ucx_worker::~ucx_worker() {
  take_released([](const ucx_frame&) {});
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

int ucx_worker::event_fd() const {
  int fd = -1;
  ucx_check(ucp_worker_get_efd(worker_, &fd), "UCX cannot be waited for");
  return fd;
}

std::vector<std::byte> ucx_worker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  ucx_check(ucp_worker_get_address(worker_, &address, &length), "cannot tell UCX's address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> result(bytes, bytes + length);
  ucp_worker_release_address(worker_, address);
  return result;
}

ucx_worker::region ucx_worker::allocate(std::size_t bytes) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  // One page more than asked for: what UCX allocates need not start at a page.
  params.length = (bytes + page_bytes - 1) / page_bytes * page_bytes + page_bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  region result;
  ucx_check(ucp_mem_map(context_, &params, &result.handle),
            ("cannot register " + std::to_string(bytes) + " bytes of memory").c_str());
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  ucx_check(ucp_mem_query(result.handle, &attributes), "cannot find registered memory");
  const auto start = reinterpret_cast<std::uintptr_t>(attributes.address);
  const auto skipped = (page_bytes - start % page_bytes) % page_bytes;
  result.memory = {static_cast<std::byte*>(attributes.address) + skipped, bytes};
  std::memset(result.memory.data(), 0, bytes);
  return result;
}

std::vector<std::byte> ucx_worker::pack_key(const region& of) const {
  void* key = nullptr;
  std::size_t length = 0;
  ucx_check(ucp_rkey_pack(context_, of.handle, &key, &length), "cannot share registered memory");
  const auto* bytes = static_cast<const std::byte*>(key);
  std::vector<std::byte> result(bytes, bytes + length);
  ucp_rkey_buffer_release(key);
  return result;
}

void ucx_worker::unmap(const region& of) noexcept {
  (void)ucp_mem_unmap(context_, of.handle);
}

frame_ptr ucx_worker::lend(std::unique_ptr<ucx_frame> frame) {
  return {frame.release(), [](ucx_frame* item) {
            // Out of the frame first: the frame may be gone before its worker is.
            const auto lender = std::move(item->lender_);
            lender->release(item);
          }};
}

void ucx_worker::on_many_released(std::uint32_t count, std::function<void()> wake) {
  wake_count_ = count;
  wake_ = std::move(wake);
}

void ucx_worker::release(ucx_frame* item) noexcept {
  released_.push(item);
  if (released_count_.fetch_add(1, std::memory_order_relaxed) + 1 >= wake_count_) {
    wake_();
  }
}

void ucx_worker::give_back(ucx_frame* item) noexcept {
  ucp_am_data_release(worker_, item->data_);
  delete item;
}

}  // namespace eldr::messages
