@0xe4b1d07c9a52f368;

# The routing artifact: what `eldr fit` makes of a trace and a router routes by. The file is a
# 32-byte header (fit/artifact.hpp) and one Routing message in a single segment.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("eldr::fit::wire");

struct Routing {
  geometry          @0 :Geometry;
  transform         @1 :Transform;
  slots             @2 :UInt32;
  # K: centroids, one decode worker each.
  centroids         @3 :Data;
  # float32 [slots][mask][experts], unit length.
  vanillaCentroids  @4 :Data;
  # Likewise, of plain K-means: for the ablation.
  clusterPatterns   @5 :Data;
  # float32 [slots][layers][experts]: share of decode tokens that choose each expert.
  globalPattern     @6 :Data;
  # float32 [layers][experts], over all calibration requests.
  placement         @7 :Placement;
  labels            @8 :List(LabelCount);
  # Of the calibration requests, most frequent first.
  report            @9 :Report;
  provenance        @10 :Provenance;
}

struct Geometry {
  model            @0 :Text;
  layers           @1 :UInt32;
  experts          @2 :UInt32;
  expertsPerToken  @3 :UInt32;
  blockTokens      @4 :UInt32;
}

struct Transform {
  representation @0 :UInt8;     # 0 count, 1 count*idf, 2 sqrt(count), 3 binary.
  mask           @1 :List(UInt32);  # Layers used, ascending.
  weights        @2 :Data;      # float32 [mask][experts] for count*idf, else empty.
}

struct Placement {
  ranks  @0 :UInt32;   # Expert-parallel ranks of a decode worker.
  rankOf @1 :Data;     # uint16 [slots][layers][experts]; empty when ranks = 1.
}

struct LabelCount {
  label    @0 :Text;   # Empty: unlabelled.
  requests @1 :UInt32;
}

# --- the fit report, for people ------------------------------------------------------------------

struct Report {
  splits       @0 :List(Split);       # Train, validation, test.
  scores       @1 :List(Score);       # Per representation, all layers.
  maskCurve    @2 :List(MaskStep);
  maskedScore  @3 :Score;             # The chosen representation under the best mask.
  maskKept     @4 :Bool;
  clusters     @5 :List(Cluster);
  objective    @6 :Float64;           # Mean cosine of a request with its centroid.
  vanillaObjective @7 :Float64;
  vanillaSizes @8 :List(UInt32);
  unionBatch   @9 :UInt32;            # Batch size of the expected unions.
  heldOutSlotUnion   @10 :Float64;    # A test request with a batch of its slot ...
  heldOutRandomUnion @11 :Float64;    # ... and with a random batch.
  warnings     @12 :List(Text);
}

struct Split {
  requests @0 :UInt32;
  pairs    @1 :UInt32;
}

struct Score {
  representation @0 :UInt8;
  rho            @1 :List(Float64);   # Per split; NaN where it is undefined.
  zeroNorm       @2 :UInt32;          # Calibration requests without a direction.
  eligible       @3 :Bool;
}

struct MaskStep {
  layer         @0 :UInt32;
  trainRho      @1 :Float64;
  validationRho @2 :Float64;
}

struct Cluster {
  requests    @0 :UInt32;
  labels      @1 :List(LabelCount);   # Most frequent first.
  slotUnion   @2 :Float64;            # Expected distinct experts per layer, calibration requests.
  randomUnion @3 :Float64;            # The cluster's requests in random batches.
}

struct Provenance {
  toolVersion  @0 :Text;
  traceDigest  @1 :UInt64;
  traceSource  @2 :Text;
  requests     @3 :UInt32;   # In the trace.
  calibration  @4 :UInt32;   # Behind the clusters.
  seed         @5 :UInt64;
}
