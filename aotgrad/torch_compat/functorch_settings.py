"""The settings and parameters of `functorch.compile` that aotgrad does not have, and what to use instead.

Each is accepted with the value that torch has by default, where it asks for nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PeerParameter(NamedTuple):
    """A parameter of torch's functions: the value that asks for nothing, and what to use for others."""

    neutral: Any
    instead: str


_SIZES = "sizes are symbolic where those of the arguments are; leave it out"
_IN_MEMORY = "smaller graphs stay in memory; save them in `dump_state`"
_INDUCTOR = "the backend 'inductor' takes `options={'mode': ...}` and `options={'inductor': {...}}`"

PEER_PARAMETERS: dict[str, dict[str, PeerParameter]] = {
    "aot_export_joint_with_descriptors": {
        "disable_functionalization": PeerParameter(False, "mutations and aliases are always analyzed; leave it out"),
        "ignore_shape_env": PeerParameter(False, _SIZES),
        "_disable_torch_fn_metadata_mode": PeerParameter(False, "it is private to torch; leave it out"),
        "_record_nn_module_stack": PeerParameter(False, "nodes have the stack of modules in `meta`; leave it out"),
    },
    "aot_function": {
        "disable_functionalization": PeerParameter(False, "mutations and aliases are always analyzed; leave it out"),
        "enable_log": PeerParameter(True, "use `aotgrad.set_logs`, or the logger 'aotgrad'"),
        "hasher_type": PeerParameter("StaticShapeHasher", "guards find the plan of a call; `dynamic=True` for all sizes"),
        "static_argnums": PeerParameter(None, "arguments that are no tensors are constants of a plan; leave it out"),
        "_disable_torch_fn_metadata_mode": PeerParameter(False, "it is private to torch; leave it out"),
    },
    "aot_module_simplified": {
        "boxed_forward_device_index": PeerParameter(None, _INDUCTOR),
        "compile_region_name": PeerParameter(None, "name a region with `torch.profiler.record_function`"),
        "compiler_config_extra": PeerParameter(None, _INDUCTOR),
        "cudagraphs": PeerParameter(None, _INDUCTOR),
        "disable_functionalization": PeerParameter(False, "mutations and aliases are always analyzed; leave it out"),
        "ignore_shape_env": PeerParameter(False, _SIZES),
        "pre_grad_passes": PeerParameter(None, "change the module before, or use `options={'joint_passes': [...]}`"),
        "_disable_torch_fn_metadata_mode": PeerParameter(False, "it is private to torch; leave it out"),
    },
    "minifier": {
        "offload_to_disk": PeerParameter(False, _IN_MEMORY),
        "save_dir": PeerParameter(None, _IN_MEMORY),
        "skip_offload": PeerParameter(False, _IN_MEMORY),
    },
}
"""The parameters by function."""

_CACHE = "use the option `cache`; `aotgrad.save` and `aotgrad.load` ship plans"
_CUSTOM_OPS = "custom ops are compiled as their schemas say; the option `verify` checks each stage"
_FAKES = "torch's fake tensors read it from `torch._functorch.config`; set it there"
_OFFLOAD = "use the option `offload`, which decides when values move"
_PARTITION = "use the options `partitioner`, `memory_budget` and `checkpoint_policies`"
_REPORTS = "use `aotgrad.explain` and `aotgrad.memory_frontier`"

PEER_SETTINGS: dict[str, str] = {
    "activation_memory_budget_require_full_coverage": _PARTITION,
    "activation_memory_budget_runtime_estimator": "use the option `flops_per_byte`, which may be measured",
    "activation_memory_budget_solver": _PARTITION,
    "activation_offload_cpu_gpu_bw": _OFFLOAD,
    "activation_offload_separate_stream": _OFFLOAD,
    "activation_offload_sink_wait": _OFFLOAD,
    "activation_reload_prefetch": _OFFLOAD,
    "aggressive_recomputation": _PARTITION,
    "autograd_cache_allow_custom_autograd_functions": _CACHE,
    "autograd_cache_normalize_inputs": _CACHE,
    "backward_pass_autocast": "a backward computes in the dtypes of eager's; leave it out",
    "ban_recompute_long_fusible_chains": _PARTITION,
    "ban_recompute_materialized_backward": _PARTITION,
    "ban_recompute_not_in_allowlist": _PARTITION,
    "ban_recompute_reductions": _PARTITION,
    "ban_recompute_used_far_apart": _PARTITION,
    "bundled_autograd_cache": _CACHE,
    "bypass_autograd_cache_key": _CACHE,
    "check_custom_op_aliasing": _CUSTOM_OPS,
    "cse": "equal calls are always computed once; leave it out",
    "custom_op_default_layout_constraint": "tag the op with its layouts (`torch.Tag.needs_fixed_stride_order`)",
    "debug_assert": "use the option `verify`",
    "debug_partitioner": _REPORTS,
    "decompose_custom_triton_ops": "Triton kernels stay ops of the graph; leave it out",
    "disable_guess_zero_tangent_for_mutated_input_subclass": "a gradient of another form compiles another backward",
    "donated_buffer": "a backward reuses memory where nothing else reads it; leave it out",
    "enable_autograd_cache": _CACHE,
    "enable_complex_wrapper": "complex tensors are compiled as they are; leave it out",
    "enable_remote_autograd_cache": _CACHE,
    "error_on_custom_op_aliasing": _CUSTOM_OPS,
    "fake_tensor_allow_meta": _FAKES,
    "fake_tensor_allow_unsafe_data_ptr_access": _FAKES,
    "fake_tensor_crossref": _FAKES,
    "fake_tensor_prefer_device_type": _FAKES,
    "fake_tensor_propagate_real_tensors": _FAKES,
    "force_autograd_cache": _CACHE,
    "force_non_lazy_backward_lowering": "call the backward once to compile it",
    "generate_fake_kernels_from_real_mismatches": _FAKES,
    "graphsafe_rng_functionalization": "use the option `functionalize_rng`",
    "guess_tangent_strides_as_outputs": "a gradient of another layout is accepted; leave it out",
    "is_non_builtin_to_include": _PARTITION,
    "joint_custom_pass": "use the option `joint_passes`",
    "max_dist_from_bw": _PARTITION,
    "memory_budget_pareto_dir": _REPORTS,
    "recompute_views": _PARTITION,
    "remat_using_tags_for_fwd_loss_bwd_graph": "use `aotgrad.train_step`, in which checkpointed regions are recomputed",
    "saved_tensors_hooks_filtering_mode": "hooks of saved tensors get what eager's would get where they run; leave it out",
    "selective_decompose": "use the parameter `decompositions`",
    "static_weight_shapes": "sizes of parameters are always static; leave it out",
    "strict_autograd_cache": _CACHE,
    "torch_compile_graph_format": "use `aotgrad.draw_graph`, whose file name gives the format",
    "treat_parameters_as_free_to_save": "what is alive anyway is always free to save; leave it out",
    "unlift_effect_tokens": "the graph itself orders ops with effects; leave it out",
    "unsafe_allow_optimization_of_collectives": "use the option `collectives_first`",
    "unsafe_treat_script_objects_as_zero_size": _PARTITION,
    "view_replay_for_aliased_outputs": "views are always replayed on their base; leave it out",
    "visualize_memory_budget_pareto": _REPORTS,
}
"""The settings of `functorch.compile.config`, by name."""
