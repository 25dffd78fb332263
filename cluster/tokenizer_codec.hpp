#pragma once
/// The gateway's view of a model: its tokenizer, end tokens and context.

#include <memory>

#include "actors/request/text.hpp"
#include "gpu/model_files.hpp"

namespace eldr::cluster {

/// Throws std::runtime_error that says what the model lacks or what is not supported.
std::shared_ptr<const actors::text_codec> make_tokenizer_codec(const gpu::model_files& files);

}  // namespace eldr::cluster
