#include "fit/artifact_codec.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "fit/artifact.capnp.h"
#include "fit/error.hpp"

namespace eldr::fit {
namespace {

constexpr std::uint32_t layers_max = 1024;
constexpr std::uint32_t experts_max = 65'536;
constexpr std::uint32_t slots_max = 4096;

// --- encoding ---------------------------------------------------------------------------------

template <typename T>
kj::ArrayPtr<const kj::byte> raw(const std::vector<T>& values) {
  return {reinterpret_cast<const kj::byte*>(values.data()), values.size() * sizeof(T)};
}

void encode_labels(const std::vector<label_count>& labels,
                   capnp::List<wire::LabelCount>::Builder out) {
  for (std::uint32_t i = 0; i < labels.size(); ++i) {
    out[i].setLabel(labels[i].label);
    out[i].setRequests(labels[i].requests);
  }
}

template <typename List, typename Values>
void encode_numbers(const Values& values, List out) {
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    out.set(i, values[i]);
  }
}

std::uint32_t length(const auto& values) {
  return static_cast<std::uint32_t>(values.size());
}

void encode_score(const representation_score& score, wire::Score::Builder out) {
  out.setRepresentation(static_cast<std::uint8_t>(score.kind));
  encode_numbers(score.rho, out.initRho(splits));
  out.setZeroNorm(score.zero_norm);
  out.setEligible(score.eligible);
}

void encode_report(const fit_report& report, wire::Report::Builder out) {
  auto split = out.initSplits(splits);
  for (std::uint32_t i = 0; i < splits; ++i) {
    split[i].setRequests(report.split[i].requests);
    split[i].setPairs(report.split[i].pairs);
  }
  auto scores = out.initScores(length(report.scores));
  for (std::uint32_t i = 0; i < report.scores.size(); ++i) {
    encode_score(report.scores[i], scores[i]);
  }
  auto curve = out.initMaskCurve(length(report.mask_curve));
  for (std::uint32_t i = 0; i < report.mask_curve.size(); ++i) {
    curve[i].setLayer(report.mask_curve[i].layer);
    curve[i].setTrainRho(report.mask_curve[i].train_rho);
    curve[i].setValidationRho(report.mask_curve[i].validation_rho);
  }
  encode_score(report.masked_score, out.initMaskedScore());
  out.setMaskKept(report.mask_kept);
  auto clusters = out.initClusters(length(report.clusters));
  for (std::uint32_t i = 0; i < report.clusters.size(); ++i) {
    const cluster_summary& cluster = report.clusters[i];
    clusters[i].setRequests(cluster.requests);
    encode_labels(cluster.labels, clusters[i].initLabels(length(cluster.labels)));
    clusters[i].setSlotUnion(cluster.slot_union);
    clusters[i].setRandomUnion(cluster.random_union);
  }
  out.setObjective(report.objective);
  out.setVanillaObjective(report.vanilla_objective);
  encode_numbers(report.vanilla_sizes, out.initVanillaSizes(length(report.vanilla_sizes)));
  out.setUnionBatch(report.union_batch);
  out.setHeldOutSlotUnion(report.held_out_slot_union);
  out.setHeldOutRandomUnion(report.held_out_random_union);
  auto warnings = out.initWarnings(length(report.warnings));
  for (std::uint32_t i = 0; i < report.warnings.size(); ++i) {
    warnings.set(i, report.warnings[i]);
  }
}

void encode_routing(const artifact& value, wire::Routing::Builder out) {
  auto geometry = out.initGeometry();
  geometry.setModel(value.model);
  geometry.setLayers(value.layers);
  geometry.setExperts(value.experts);
  geometry.setExpertsPerToken(value.experts_per_token);
  geometry.setBlockTokens(value.block_tokens);
  auto transform = out.initTransform();
  transform.setRepresentation(static_cast<std::uint8_t>(value.kind));
  encode_numbers(value.mask, transform.initMask(length(value.mask)));
  transform.setWeights(raw(value.weights));
  out.setSlots(value.slots);
  out.setCentroids(raw(value.centroids));
  out.setVanillaCentroids(raw(value.vanilla_centroids));
  out.setClusterPatterns(raw(value.cluster_patterns));
  out.setGlobalPattern(raw(value.global_pattern));
  auto placement = out.initPlacement();
  placement.setRanks(value.ep_ranks);
  placement.setRankOf(raw(value.ep_rank_of));
  encode_labels(value.labels, out.initLabels(length(value.labels)));
  encode_report(value.report, out.initReport());
  auto provenance = out.initProvenance();
  provenance.setToolVersion(value.tool_version);
  provenance.setTraceDigest(value.trace_digest);
  provenance.setTraceSource(value.trace_source);
  provenance.setRequests(value.trace_requests);
  provenance.setCalibration(value.calibration_requests);
  provenance.setSeed(value.seed);
}

// --- decoding ---------------------------------------------------------------------------------

void require(bool condition, const char* what) {
  if (!condition) {
    throw fit_error(std::string("its content is inconsistent (") + what + ")");
  }
}

/// Numbers of a Data field, which must be `count` of them, all finite.
template <typename T>
std::vector<T> read_raw(capnp::Data::Reader data, std::size_t count, const char* what) {
  require(data.size() == count * sizeof(T), what);
  std::vector<T> values(count);
  if (count > 0) {
    std::memcpy(values.data(), data.begin(), data.size());
  }
  if constexpr (std::is_floating_point_v<T>) {
    require(std::ranges::all_of(values, [](T value) { return std::isfinite(value); }), what);
  }
  return values;
}

std::vector<label_count> decode_labels(capnp::List<wire::LabelCount>::Reader labels) {
  std::vector<label_count> result;
  for (const auto label : labels) {
    result.push_back({label.getLabel(), label.getRequests()});
  }
  return result;
}

representation decode_kind(std::uint8_t kind, std::uint8_t end) {
  require(kind < end, "unknown representation");
  return static_cast<representation>(kind);
}

representation_score decode_score(wire::Score::Reader score) {
  representation_score result;
  result.kind = decode_kind(score.getRepresentation(), representations);
  require(score.getRho().size() == splits, "splits");
  for (std::uint32_t i = 0; i < splits; ++i) {
    result.rho[i] = score.getRho()[i];
  }
  result.zero_norm = score.getZeroNorm();
  result.eligible = score.getEligible();
  return result;
}

fit_report decode_report(wire::Report::Reader report) {
  fit_report result;
  require(report.getSplits().size() == splits, "splits");
  for (std::uint32_t i = 0; i < splits; ++i) {
    const auto split = report.getSplits()[i];
    result.split[i] = {split.getRequests(), split.getPairs()};
  }
  for (const auto score : report.getScores()) {
    result.scores.push_back(decode_score(score));
  }
  for (const auto step : report.getMaskCurve()) {
    result.mask_curve.push_back({step.getLayer(), step.getTrainRho(), step.getValidationRho()});
  }
  result.masked_score = decode_score(report.getMaskedScore());
  result.mask_kept = report.getMaskKept();
  for (const auto cluster : report.getClusters()) {
    result.clusters.push_back({cluster.getRequests(), decode_labels(cluster.getLabels()),
                               cluster.getSlotUnion(), cluster.getRandomUnion()});
  }
  result.objective = report.getObjective();
  result.vanilla_objective = report.getVanillaObjective();
  for (const std::uint32_t size : report.getVanillaSizes()) {
    result.vanilla_sizes.push_back(size);
  }
  result.union_batch = report.getUnionBatch();
  result.held_out_slot_union = report.getHeldOutSlotUnion();
  result.held_out_random_union = report.getHeldOutRandomUnion();
  for (const auto warning : report.getWarnings()) {
    result.warnings.emplace_back(warning.cStr(), warning.size());
  }
  return result;
}

void decode_geometry(wire::Routing::Reader routing, artifact& result) {
  const auto geometry = routing.getGeometry();
  result.model = geometry.getModel();
  result.layers = geometry.getLayers();
  result.experts = geometry.getExperts();
  result.experts_per_token = geometry.getExpertsPerToken();
  result.block_tokens = geometry.getBlockTokens();
  result.slots = routing.getSlots();
  require(result.layers >= 1 && result.layers <= layers_max, "layers");
  require(result.experts >= 1 && result.experts <= experts_max, "experts");
  require(result.experts_per_token >= 1 && result.experts_per_token <= result.experts,
          "experts per token");
  require(result.block_tokens >= 1, "block size");
  require(result.slots >= 1 && result.slots <= slots_max, "slots");
}

void decode_transform(wire::Transform::Reader transform, artifact& result) {
  result.kind = decode_kind(transform.getRepresentation(), routable_representations);
  for (const std::uint32_t layer : transform.getMask()) {
    require(layer < result.layers && (result.mask.empty() || layer > result.mask.back()), "mask");
    result.mask.push_back(layer);
  }
  require(!result.mask.empty(), "mask");
  const bool weighted = result.kind == representation::count_idf;
  result.weights = read_raw<float>(transform.getWeights(),
                                   weighted ? result.mask.size() * result.experts : 0, "weights");
}

artifact decode_routing(wire::Routing::Reader routing) {
  artifact result;
  decode_geometry(routing, result);
  decode_transform(routing.getTransform(), result);
  const std::size_t cells = std::size_t{result.layers} * result.experts;
  const std::size_t masked = result.slots * result.mask.size() * result.experts;
  result.centroids = read_raw<float>(routing.getCentroids(), masked, "centroids");
  result.vanilla_centroids =
      read_raw<float>(routing.getVanillaCentroids(), masked, "vanilla centroids");
  result.cluster_patterns =
      read_raw<float>(routing.getClusterPatterns(), result.slots * cells, "decode patterns");
  result.global_pattern = read_raw<float>(routing.getGlobalPattern(), cells, "decode pattern");
  const auto placement = routing.getPlacement();
  result.ep_ranks = placement.getRanks();
  require(result.ep_ranks >= 1 && result.experts % result.ep_ranks == 0, "EP ranks");
  result.ep_rank_of = read_raw<std::uint16_t>(
      placement.getRankOf(), result.ep_ranks == 1 ? 0 : result.slots * cells, "placement");
  require(std::ranges::all_of(result.ep_rank_of,
                              [&result](std::uint16_t rank) { return rank < result.ep_ranks; }),
          "placement");
  result.labels = decode_labels(routing.getLabels());
  result.report = decode_report(routing.getReport());
  const auto provenance = routing.getProvenance();
  result.tool_version = provenance.getToolVersion();
  result.trace_digest = provenance.getTraceDigest();
  result.trace_source = provenance.getTraceSource();
  result.trace_requests = provenance.getRequests();
  result.calibration_requests = provenance.getCalibration();
  result.seed = provenance.getSeed();
  return result;
}

}  // namespace

std::vector<std::byte> encode_artifact(const artifact& value) {
  const std::size_t bulk = raw(value.centroids).size() + raw(value.vanilla_centroids).size() +
                           raw(value.cluster_patterns).size() + raw(value.global_pattern).size() +
                           raw(value.weights).size() + raw(value.ep_rank_of).size();
  // One segment, so that the bytes follow from the content alone.
  constexpr std::size_t other_words = 64 * 1024;
  capnp::MallocMessageBuilder message(
      static_cast<std::uint32_t>(bulk / sizeof(capnp::word) + other_words));
  encode_routing(value, message.initRoot<wire::Routing>());
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = std::as_bytes(std::span(words.begin(), words.size()));
  return {bytes.begin(), bytes.end()};
}

artifact decode_artifact(std::span<const std::byte> payload) {
  try {
    // A copy is aligned whatever the payload is.
    std::vector<capnp::word> words(payload.size() / sizeof(capnp::word));
    if (words.empty()) {
      throw fit_error("it is truncated");
    }
    std::memcpy(words.data(), payload.data(), words.size() * sizeof(capnp::word));
    capnp::ReaderOptions options;
    // Every word is read once; the slack is for empty structures, which cost a word each.
    options.traversalLimitInWords = 2 * words.size() + 1024;
    capnp::FlatArrayMessageReader reader(kj::ArrayPtr(words.data(), words.size()), options);
    return decode_routing(reader.getRoot<wire::Routing>());
  } catch (const kj::Exception&) {
    throw fit_error("it is corrupt");
  }
}

}  // namespace eldr::fit
