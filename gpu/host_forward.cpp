#include "gpu/host_forward.hpp"

#include <algorithm>
#include <cmath>

#include "gpu/top_k.hpp"

namespace eldr::gpu {
namespace {

/// Weight rows that one thread takes at a time.
constexpr std::uint32_t row_grain = 8;

std::vector<float> widened(const kernels& k, const tensor_view& tensor) {
  std::vector<float> values(std::size_t{tensor.rows} * tensor.cols);
  k.widen(tensor.dtype, tensor.data, values.data(), static_cast<std::uint32_t>(values.size()));
  return values;
}

}  // namespace

host_forward::host_forward(const model_config& config, const model_weights& weights,
                           const kv_layout& layout, const kernels& k, std::uint32_t threads)
    : config_(config),
      geometry_(config.geometry),
      weights_(weights),
      layout_(layout),
      k_(k),
      query_scale_(1.0F / std::sqrt(static_cast<float>(geometry_.head_dim))),
      final_norm_(widened(k, weights.final_norm())),
      rope_(geometry_.context_max, geometry_.head_dim, config.rope_theta),
      team_(threads),
      attention_(k, team_, layout, geometry_.heads),
      experts_(k, team_, geometry_.hidden, geometry_.expert_width),
      hidden_(geometry_.hidden),
      normed_(geometry_.hidden),
      q_(geometry_.heads * geometry_.head_dim),
      key_(geometry_.kv_heads * geometry_.head_dim),
      value_(geometry_.kv_heads * geometry_.head_dim),
      attended_(geometry_.heads * geometry_.head_dim),
      projected_(geometry_.hidden),
      gate_(geometry_.experts),
      logits_(geometry_.vocab) {
  for (const layer_weights& layer : weights.layers()) {
    norms_.push_back({widened(k, layer.attention_norm), widened(k, layer.expert_norm),
                      widened(k, layer.q_norm), widened(k, layer.k_norm)});
  }
}

void host_forward::run_layers(const step_batch& batch, const engine_memory& memory,
                              step_result& result) {
  prepare(batch);
  if (batch.record_choices) {
    for (std::size_t s = 0; s < batch.slices.size(); ++s) {
      result.slices[s].choices.resize(batch.slices[s].tokens.size() * geometry_.layers *
                                      geometry_.experts_per_token);
    }
  }
  for (std::uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    attention_layer(layer, memory);
    const layer_weights& weights = weights_.layers()[layer];
    team_.run([&](std::uint32_t rank) { project(weights.gate, normed_, gate_, rank); });
    for_rows([&](std::uint32_t row) { choose_experts(row); });
    experts_.run(weights.experts, normed_.from(), hidden_.from(), choices_, choice_weights_,
                 geometry_.experts_per_token);
    set_signature_rows(layer, batch, memory);
    result.distinct_experts.push_back(static_cast<std::uint16_t>(experts_.distinct()));
    if (batch.record_choices) {
      record_choices(layer, result);
    }
  }
}

void host_forward::prepare(const step_batch& batch) {
  rows_.clear();
  for (const sequence_slice& slice : batch.slices) {
    for (std::uint32_t i = 0; i < slice.tokens.size(); ++i) {
      rows_.push_back({&slice, slice.tokens[i], slice.position + i});
    }
  }
  const auto count = static_cast<std::uint32_t>(rows_.size());
  for (row_buffer* buffer :
       {&hidden_, &normed_, &q_, &key_, &value_, &attended_, &projected_, &gate_}) {
    buffer->reserve(count);
  }
  choices_.resize(std::size_t{count} * geometry_.experts_per_token);
  choice_weights_.resize(choices_.size());
  attention_.plan(batch);
  const tensor_view& embedding = weights_.embedding();
  for (std::uint32_t row = 0; row < count; ++row) {
    k_.widen(embedding.dtype, embedding.row(rows_[row].token), hidden_.row(row), geometry_.hidden);
  }
}

template <class F>
void host_forward::for_rows(F f) {
  const auto count = static_cast<std::uint32_t>(rows_.size());
  if (count == 1) {  // Not worth waking anybody.
    f(0U);
    return;
  }
  team_.run([&](std::uint32_t rank) {
    const index_range share = share_of(count, rank, team_.size(), 1);
    for (std::uint32_t row = share.begin; row < share.end; ++row) {
      f(row);
    }
  });
}

void host_forward::project(const tensor_view& w, const row_buffer& in, const row_buffer& out,
                           std::uint32_t rank) const {
  const index_range share = share_of(w.rows, rank, team_.size(), row_grain);
  k_.matmul(w, share.begin, share.end, in.from(), out.from(),
            static_cast<std::uint32_t>(rows_.size()));
}

void host_forward::attention_layer(std::uint32_t layer, const engine_memory& memory) {
  const layer_weights& weights = weights_.layers()[layer];
  for_rows([&](std::uint32_t row) {
    k_.rms_norm(hidden_.row(row), norms_[layer].attention.data(), config_.rms_norm_eps,
                normed_.row(row), geometry_.hidden);
  });
  team_.run([&](std::uint32_t rank) {
    project(weights.q, normed_, q_, rank);
    project(weights.k, normed_, key_, rank);
    project(weights.v, normed_, value_, rank);
  });
  for_rows([&](std::uint32_t row) { rotate_and_store(row, layer, memory); });
  attention_.run(layer, memory, q_, attended_);
  team_.run([&](std::uint32_t rank) { project(weights.o, attended_, projected_, rank); });
  for_rows([&](std::uint32_t row) {
    k_.add(hidden_.row(row), projected_.row(row), geometry_.hidden);
    k_.rms_norm(hidden_.row(row), norms_[layer].expert.data(), config_.rms_norm_eps,
                normed_.row(row), geometry_.hidden);
  });
}

/// K and V go to memory in the stored dtype; attention reads them from there, also this step's own.
void host_forward::rotate_and_store(std::uint32_t row, std::uint32_t layer,
                                    const engine_memory& memory) {
  const auto [slice, token, position] = rows_[row];
  const float* cos = rope_.cos(position);
  const float* sin = rope_.sin(position);
  const auto rotate = [&](float* head, const std::vector<float>& norm, float scale) {
    k_.rms_norm(head, norm.data(), config_.rms_norm_eps, head, geometry_.head_dim);
    k_.rope(head, cos, sin, scale, rope_.half());
  };
  for (std::uint32_t h = 0; h < geometry_.heads; ++h) {
    rotate(q_.row(row) + h * geometry_.head_dim, norms_[layer].q, query_scale_);
  }
  for (std::uint32_t h = 0; h < geometry_.kv_heads; ++h) {
    rotate(key_.row(row) + h * geometry_.head_dim, norms_[layer].k, 1);
  }
  std::byte* place = memory.kv.data() +
                     slice->blocks[position / layout_.block_tokens] * layout_.block_bytes() +
                     position % layout_.block_tokens * layout_.row_bytes();
  k_.store_kv(layout_.dtype, key_.row(row), place + layout_.k_offset(layer), key_.cols());
  k_.store_kv(layout_.dtype, value_.row(row), place + layout_.v_offset(layer), value_.cols());
}

void host_forward::choose_experts(std::uint32_t row) {
  const std::uint32_t k = geometry_.experts_per_token;
  const std::span best(choices_.data() + std::size_t{row} * k, k);
  const std::span scores(gate_.row(row), geometry_.experts);
  // By logit: it orders as its probability does, and does not round different ones to equal.
  top_k(scores, best);
  k_.softmax(scores.data(), geometry_.experts);
  float* weights = choice_weights_.data() + std::size_t{row} * k;
  float sum = 0;
  for (std::uint32_t i = 0; i < k; ++i) {
    weights[i] = scores[best[i]];
    sum += weights[i];
  }
  if (config_.norm_topk_prob) {
    for (std::uint32_t i = 0; i < k; ++i) {
      weights[i] /= sum;
    }
  }
}

void host_forward::set_signature_rows(std::uint32_t layer, const step_batch& batch,
                                      const engine_memory& memory) const {
  const std::uint32_t k = geometry_.experts_per_token;
  const std::uint16_t* choice = choices_.data();
  for (const sequence_slice& slice : batch.slices) {
    if (!slice.write_rows) {
      choice += slice.tokens.size() * k;
      continue;
    }
    std::int8_t* row = nullptr;
    for (std::uint32_t i = 0; i < slice.tokens.size(); ++i) {
      if (i % layout_.block_tokens == 0) {  // The slice starts at a block boundary.
        const std::size_t block = slice.blocks[(slice.position + i) / layout_.block_tokens];
        row = memory.rows.data() + (block * geometry_.layers + layer) * geometry_.experts;
        std::fill_n(row, geometry_.experts, std::int8_t{0});
      }
      for (std::uint32_t j = 0; j < k; ++j) {
        ++row[*choice++];
      }
    }
  }
}

void host_forward::record_choices(std::uint32_t layer, step_result& result) const {
  const std::size_t k = geometry_.experts_per_token;
  const std::uint16_t* from = choices_.data();
  for (slice_result& slice : result.slices) {
    for (std::size_t at = layer * k; at < slice.choices.size(); at += geometry_.layers * k) {
      std::copy_n(from, k, slice.choices.data() + at);
      from += k;
    }
  }
}

const row_buffer& host_forward::logits(const step_batch& batch,
                                       std::span<const std::uint32_t> slices) {
  // The hidden rows of the last tokens, normed, at the front of normed_.
  const auto count = static_cast<std::uint32_t>(slices.size());
  std::uint32_t row = 0;
  std::uint32_t slice = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    for (; slice <= slices[i]; ++slice) {
      row += static_cast<std::uint32_t>(batch.slices[slice].tokens.size());
    }
    k_.rms_norm(hidden_.row(row - 1), final_norm_.data(), config_.rms_norm_eps, normed_.row(i),
                geometry_.hidden);
  }
  logits_.reserve(count);
  const tensor_view& output = weights_.output();
  team_.run([&](std::uint32_t rank) {
    const index_range share = share_of(output.rows, rank, team_.size(), row_grain);
    k_.matmul(output, share.begin, share.end, normed_.from(), logits_.from(), count);
  });
  return logits_;
}

}  // namespace eldr::gpu
