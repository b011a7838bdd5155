"""Every flag of `vllm serve` (0.32) and what becomes of it here: same, mapped, or refused by name.

A flag that is one of ours under the same name needs no entry of its own: `disposition` asks
the table of options first.
"""

from __future__ import annotations

from dataclasses import dataclass

PARALLEL = "tensor-parallel groups, stages and replicas are all that is built yet"
MULTIMODAL = "models are text only"
LORA = "LoRA adapters are not supported"
MOE = "mixture-of-experts models are not supported"
MAMBA = "state-space models are not supported"
SPECULATIVE = "speculative decoding is not supported"
CUDA = "there is no CUDA backend yet"
OFFLOAD = "KV tiers beyond host memory and weight offload are not built yet"
STRUCTURED = "structured outputs and tool calls are not supported"
PLUGIN = "code of the user's is never loaded into the engine"
REMOTE_CODE = "remote code is never run"
POOLING = "only text generation is served"
TRACING = "tracing is not built yet"
SLEEP = "sleep mode is not supported"
FILE_CONTROLS = "the model's own files decide this"
NO_SUCH_PART = "Takt has no such part"


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    neutral: tuple[str, ...] = ()
    """Values that ask for nothing and are therefore accepted."""


@dataclass(frozen=True, slots=True)
class Mapped:
    flag: str


Disposition = Refused | Mapped

_REFUSED_BY_REASON: dict[str, str] = {
    PARALLEL: """
        --all2all-backend --cp-kv-cache-interleave-size --data-parallel-address
        --data-parallel-backend --data-parallel-external-lb --data-parallel-hybrid-lb
        --data-parallel-multi-port-external-lb --data-parallel-rank --data-parallel-rpc-port
        --data-parallel-size-local --data-parallel-start-rank
        --data-parallel-supervisor-port --dcp-comm-backend --dcp-kv-cache-interleave-size
        --dcp-q-replicate --decode-context-parallel-size --device-ids
        --distributed-timeout-seconds --cpu-distributed-timeout-seconds --dp-sync-interval
        --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s
        --dp-supervisor-probe-timeout-s --elastic-ep-max-dp-size --enable-elastic-ep
        --enable-fault-tolerance --enable-scale-out --fault-tolerance-config --headless
        --master-addr --master-port --max-parallel-loading-workers --nnodes --node-rank
        --numa-bind --numa-bind-cpus --numa-bind-nodes --prefill-context-parallel-size
        --disable-custom-all-reduce --disable-nccl-for-dp-synchronization
        --enable-nccl-comm-suspend --ray-workers-use-nsight --api-server-count
        --enable-batch-sharded-sampling --enable-shm-tensor-arena""",
    MULTIMODAL: """
        --allowed-local-media-path --allowed-media-domains --disable-chunked-mm-input
        --enable-mm-embeds --interleave-mm-strings --limit-mm-per-prompt --media-io-kwargs
        --mm-device-do-normalize --mm-encoder-attn-backend --mm-encoder-attn-dtype
        --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin
        --mm-encoder-fp8-scale-save-path --mm-encoder-only --mm-encoder-tp-mode
        --mm-hasher-algorithm --mm-ipc-gpu-memory-gb --mm-processor-cache-gb
        --mm-processor-cache-type --mm-processor-device --mm-processor-kwargs
        --mm-shm-cache-max-object-size-mb --mm-tensor-ipc --skip-mm-profiling
        --video-pruning-method --video-pruning-rate --language-model-only
        --trust-request-mm-kwargs --diffusion-config --enable-prompt-embeds""",
    LORA: """
        --default-mm-loras --enable-lora --enable-mixed-moe-lora-format
        --enable-moe-shared-loras --enable-tower-connector-lora --fully-sharded-loras
        --lora-dtype --lora-modules --lora-target-modules --max-cpu-loras
        --max-lora-cls-labels --max-lora-rank --max-loras --specialize-active-lora""",
    MOE: """
        --enable-eplb --enable-ep-weight-filter --enable-expert-parallel
        --enable-return-routed-experts --eplb-config --expert-placement-strategy
        --moe-backend""",
    MAMBA: """
        --enable-mamba-cache-stochastic-rounding --enable-mamba-shared-prefix-checkpoint
        --gdn-prefill-backend --kda-decode-backend --kda-prefill-backend --mamba-backend
        --mamba-block-size --mamba-cache-dtype --mamba-cache-mode --mamba-cache-philox-rounds
        --mamba-ssm-cache-dtype --mamba-ssu-algorithm --replayssm-buffer-len
        --use-replayssm""",
    SPECULATIVE: """
        --per-request-spec-decode-metrics --spec-method --spec-model --spec-tokens
        --speculative-config""",
    CUDA: """
        --attention-backend --attention-config --compilation-config --cudagraph-capture-sizes
        --cudagraph-metrics --dbo-decode-token-threshold --dbo-prefill-token-threshold
        --disable-cascade-attn --enable-cumem-allocator --enable-dbo
        --enable-flashinfer-autotune --enable-flash-late-interaction --enable-hc-sp
        --enable-layerwise-nvtx-tracing --ir-op-priority --jit-monitor-mode
        --jit-monitor-verbose --kernel-config --linear-backend --max-cudagraph-capture-size
        --optimization-level --sparse-indexer-topk-backend --ubatch-size
        --use-fp64-gumbel --profiler-config""",
    OFFLOAD: """
        --cpu-offload-gb --cpu-offload-params --ec-manager-config --ec-transfer-config
        --engram-config --kv-cache-dtype-skip-layers --kv-events-config
        --kv-offloading-backend --kv-sharing-fast-prefill
        --kv-transfer-config --offload-backend --offload-group-size --offload-num-in-group
        --offload-params --offload-prefetch-step --weight-transfer-config
        --aux-output-config""",
    STRUCTURED: """
        --enable-auto-tool-choice --exclude-tools-when-tool-choice-none --reasoning-config
        --reasoning-parser --reasoning-parser-plugin --structured-outputs-config
        --tool-call-parser --tool-parser-plugin --tool-server --tool-strict-level
        --cohere-format --cohere-is-reasoning-model --anthropic-disabled-thinking-effort""",
    PLUGIN: """
        --additional-config --io-processor-plugin --logits-processors --middleware
        --model-class-overrides --scheduler-cls --worker-cls --worker-extension-cls""",
    REMOTE_CODE: """
        --code-revision --hf-overrides --trust-remote-code --trust-request-chat-template""",
    POOLING: """
        --convert --pooler-config --runner --skip-tokenizer-init --tokens-only""",
    TRACING: """
        --collect-detailed-traces --enable-trace-replay --otlp-traces-endpoint""",
    SLEEP: """
        --enable-sleep-mode --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names""",
    FILE_CONTROLS: """
        --config-format --generation-config --hf-config-path --model-impl
        --model-loader-extra-config --override-generation-config --quantization-config
        --tokenizer-mode --allow-deprecated-quantization --pt-load-map-location""",
    NO_SUCH_PART: """
        --aggregate-engine-logging --async-scheduling --chat-template-content-format --config
        --custom-histogram-buckets --default-chat-template-kwargs --device-memory-utilization
        --disable-access-log-for-endpoints --disable-fastapi-docs
        --disable-hybrid-kv-cache-manager --disable-sliding-window --download-dir
        --enable-force-include-usage --enable-log-deltas --enable-log-outputs
        --enable-log-requests --enable-logging-iteration-details --enable-mfu-metrics
        --enable-offline-docs --enable-per-request-metrics --enable-server-load-tracking
        --enable-ssl-refresh --enable-tokenizer-info-endpoint --fail-on-environ-validation
        --fingerprint-mode --fingerprint-value --grpc --grpc-port --hf-token
        --ignore-patterns --kv-cache-metrics --kv-cache-metrics-sample --log-config-file
        --log-error-stack --logging-config --logprobs-mode --long-prefill-token-threshold
        --long-prefill-token-threshold-adaptive --max-log-len --max-num-active-seqs
        --max-num-queued-tokens --max-num-scheduled-tokens --num-gpu-blocks-override
        --performance-mode --prefill-schedule-interval --prefix-cache-retention-interval
        --prefix-caching-hash-algo --prefix-match-unit --renderer-num-workers
        --response-role --return-sampling-mask --return-tokens-as-token-ids --revision
        --root-path --safetensors-load-strategy --safetensors-prefetch-block-size
        --safetensors-prefetch-num-threads --scheduler-reserve-full-isl
        --show-hidden-metrics-for-version --sse-keep-alive-interval --ssl-ca-certs
        --ssl-cert-reqs --ssl-ciphers --stream-interval --swa-bounded-replay
        --tokenizer-revision --use-tqdm-on-load --watermark --watermark-config
        --allow-credentials --allowed-methods --allowed-headers""",
}

_WITH_NEUTRAL_VALUES: dict[str, Refused] = {
    "--seed": Refused("a seed belongs to a request", ("0",)),
}

_HARMLESS_SWITCHES = ("--disable-log-stats", "--enable-prompt-tokens-details")
"""Switches that ask for what Takt does anyway; accepted, and said so in the reference."""

_MAPPED: dict[str, Mapped] = {
    "-q": Mapped("--quantization"),
    "-tp": Mapped("--tensor-parallel-size"),
    "-pp": Mapped("--pipeline-parallel-size"),
    "-dp": Mapped("--data-parallel-size"),
    "--max-num-queued-reqs": Mapped("--max-num-waiting"),
    "--shutdown-timeout": Mapped("--drain-timeout-seconds"),
    "--uvicorn-log-level": Mapped("--log-level"),
    "--disable-uvicorn-access-log": Mapped("--disable-access-log"),
}


OTHER_DEFAULTS = {
    "--kv-cache-dtype": "`auto` is int8 beside quantised weights, not the model's type"
}
"""Of flags that are the same but for that."""


def _build() -> dict[str, Disposition]:
    table: dict[str, Disposition] = {
        flag: Refused(reason)
        for reason, flags in _REFUSED_BY_REASON.items()
        for flag in flags.split()
    }
    table.update(_WITH_NEUTRAL_VALUES)
    table.update(_MAPPED)
    table.update({flag: Refused("nothing to ask for", ("",)) for flag in _HARMLESS_SWITCHES})
    return table


VLLM_FLAGS: dict[str, Disposition] = _build()
