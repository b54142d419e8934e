"""What tensor parallelism adds: two all-reduces per decoder layer."""

from __future__ import annotations

from simulator.specs import Platform


def allreduce_ns(platform: Platform, latency_us: float, link_efficiency: float) -> tuple[float, float]:
    """(fixed, per token) nanoseconds of all the all-reduces of one iteration; (0, 0) on one GPU.

    After the attention's output projection and after the MLP, every layer sums `hidden` activations per token
    over the p ranks (Megatron-LM, arXiv 1909.08053). A ring sends 2(p-1)/p of the bytes over each link.
    """
    ranks = platform.tensor_parallel_size
    if ranks == 1:
        return 0.0, 0.0
    model = platform.model
    calls = 2 * model.layers
    bytes_per_token = 2 * (ranks - 1) / ranks * model.hidden * model.dtype_bytes
    per_token = bytes_per_token / (platform.gpu.link_gbps * link_efficiency)  # GB/s is bytes per nanosecond
    return calls * latency_us * 1000.0, calls * per_token
