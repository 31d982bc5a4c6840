"""Every private or unstable name of torch that aotgrad uses, behind a name of our own.

Only this package may import such names, so a new torch release changes nothing else. Each name has a feature test in
`tests/torch_compat/` that fails if its meaning changes. Supports torch 2.11 to 2.15.

Tensors of eager:

autograd            the engine: nodes, edges, hooks
compiled_autograd   the graph of a whole backward
backward_checks     side work of nodes that a trace loses
checkpoints         `torch.utils.checkpoint`
memory              storages, version counters, layouts
views               what autograd records about a view
random              the states of generators
generators          random ops with a given generator
wrapper_subclasses  subclasses that wrap other tensors
parallel_modules    modules that are data parallel

The state around a call:

contexts            contexts that ops run in
global_state        the state that compiled code depends on
compiler_settings   the settings of torch's compilers
transforms          active transforms of `torch.func`
guards              guards in C++

A trace:

fakes               fake tensors
shapes              symbolic sizes, and guards on them
expressions         symbolic numbers as expressions
functional_tensors  the wrappers of a trace
functionalization   functionalization as a mode
recording           the recorder of nodes
assignments         `x.data = y` and sizes set in place
layouts             layouts that differ from eager
refusals            errors before an op is traced
overridable         which functions of torch call others
frames              what a frame of torch calls, for errors
pre_dispatch        graphs before autograd

Kernels that traces use:

kernels             Python kernels of composite ops
kernel_layouts      layouts of results that fakes have otherwise
casting_kernels     kernels that call ops of autocast
fused_optimizers    fused updates as functional ops
jagged_attention    attention on jagged tensors
zero_tensors        zero tensors with symbolic sizes
scans               the steps of scans that are differentiated

Ops, graphs and other parts of torch:

ops                 ops: names, memory, values
graphs              graphs of `torch.fx`
databases           databases of operators and modules
dynamo              Dynamo
inductor            Inductor, a folder
functorch_settings  what `functorch.compile` has and aotgrad has not
logs                `TORCH_LOGS`, `TORCH_TRACE`
"""

from __future__ import annotations

import torch.fx.traceback as fx_traceback
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, disable_functional_mode
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    decompose,
    disable_proxy_modes_tracing,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from aotgrad.torch_compat.assignments import (
    OUT_OF_PLACE,
    RESHAPES,
    VIEW_OF_LEAF,
    Assignments,
    ReshapedViews,
    may_be_swapped,
    swap_tensors,
)
from aotgrad.torch_compat.autograd import (
    GRAD_FN,
    PROBES_PER_EXCEPTION,
    UNPACKS_ONE,
    are_wanted,
    disable_node,
    edge_of,
    edges_of_running_node,
    engine_executes_all_edges,
    error_of_saved,
    gets_zeros,
    global_module_hooks,
    gradient_edge,
    gradient_edge_if_any,
    graph_is_retained,
    has_saved_tensor_hooks,
    hidden_saved_tensor_hooks,
    hides_saved_tensors,
    hooks_of_leaf,
    install_hooks_of_leaf,
    is_awaited,
    is_custom_node,
    is_hooked,
    is_node_of,
    is_only_accumulated,
    is_parameter,
    is_refused_by_transforms,
    is_users_node,
    is_wanted,
    keeps_undefined,
    kept_by_function,
    leaves_wanted,
    makes_node,
    next_nodes,
    node_class,
    node_sequence_nr,
    noted_materialization,
    plain_apply,
    pop_hooks,
    pop_post_accumulate_hooks,
    raise_second_backward,
    release_saved_tensors,
    report_backwards,
    running_node,
    saved_by_function,
    saved_by_node,
    saved_tensors,
    saved_tensors_without_hooks,
    saves_a_tensor,
    saves_a_value,
    saves_packed_values,
    sequence_nr,
    sequence_nr_of_running_node,
    set_defaults,
    some_saved_tensors,
    unpack_hooks,
    was_hooked,
    wrap_node_hooks,
)
from aotgrad.torch_compat.backward_checks import (
    CHECKED,
    CHECKED_EIGENVECTORS,
    LAID_OUT_AS,
    PHASE,
    assert_close,
    check_eigenvectors,
    check_of_running_node,
    keep_check,
    keep_differentiable,
    keep_gradient_layout,
)
from aotgrad.torch_compat.casting_kernels import CASTING_FUNCTIONS, CASTING_KERNELS, note_autocast, run_casting_kernel
from aotgrad.torch_compat.checkpoints import (
    REENTRANT_WITHOUT_GRADIENT,
    RecomputationStop,
    has_own_policy,
    kept_policy,
    plain_checkpoints,
    recomputed_once,
    report_regions,
    run_checkpointed,
    run_kept_regions,
    tag_recomputed,
)
from aotgrad.torch_compat.compiled_autograd import (
    InlinedNode,
    accumulate_into_leaves,
    called_in_graph,
    can_inline,
    compile_nodes_of,
    graph_break,
    inlined,
    no_compiled_autograd,
    recorded_node,
)
from aotgrad.torch_compat.compiler_settings import CONFIG_MODULES, CompilerSettings, compiler_context, is_engine_thread
from aotgrad.torch_compat.contexts import (
    AutocastState,
    above_autograd,
    any_autocast_enabled,
    as_inference,
    autocast_as,
    autocast_keeps,
    autocast_state,
    bare_evaluation,
    below_autograd,
    default_devices,
    disable_autocast,
    function_modes,
    function_modes_are_defaults,
    has_own_function_rules,
    no_jit_autocast,
    normal_mode,
    only_places_tensors,
    outside_of_fake_kernels,
    run_below_autograd,
    unobserved,
    without_own_rules,
)
from aotgrad.torch_compat.databases import (
    has_own_kernel,
    higher_order_database,
    module_database,
    noncontiguous_like,
    operator_database,
    tolerances_of,
)
from aotgrad.torch_compat.dynamo import (
    breaks_dynamos_graph,
    ddp_awaits_gradients,
    dims_marked_dynamic,
    disable_dynamo,
    dynamo_source,
    dynamo_symbolic_context,
    dynamos_frame_callback,
    dynamos_lock,
    fake_of_dynamo,
    float_of_tensor,
    graph_breaks,
    hide_from_dynamo,
    inline_compiled_functions,
    keep_symbolic,
    new_dynamos_lock,
    path_in_source,
    paths_of_placeholders,
    record_backwards_of_custom_functions,
    refuse_hooks_of_later,
    refuse_lost_histories,
    reset_dynamo,
    tracing_context,
    uncompiled_function,
    unwrapped_by_dynamo,
    used_placeholders,
)
from aotgrad.torch_compat.expressions import (
    assumed_value,
    backed_expression,
    backed_symbols,
    compiled_text,
    conditions_since,
    expression_of,
    expression_text,
    expression_types,
    first_symbol,
    ignored_unbacked_symbols,
    is_symbol,
    is_unbacked_name,
    meta_of_read,
    sources_of,
    symbolic_function,
    symbolic_number,
    symbolic_state,
    symbolic_text,
    text_namespace,
    unbacked_symbol,
    value_of_symbolic,
    write_expression,
)
from aotgrad.torch_compat.fakes import (
    LazyBits,
    Metadata,
    SparseForm,
    argument_source,
    detached_fake,
    dynamic_fake,
    fake_in,
    fake_of_whole,
    fixed_nested_int,
    fixed_nested_ints,
    is_whole_storage,
    item_of_fake,
    mark_parameter,
    mark_parameters,
    meta_storage,
    metadata_of,
    metadata_of_new,
    negated_as,
    new_fake,
    new_fake_mode,
    set_item_of_fake,
    symbolic_inputs,
    view_of_fake,
)
from aotgrad.torch_compat.frames import called_in, differentiated_in, op_of_formula
from aotgrad.torch_compat.functional_tensors import (
    USED_OUTSIDE,
    any_functional,
    assigned_attributes,
    detached_functional,
    from_functional,
    inner_values,
    is_functional,
    is_functionalized,
    is_traced,
    recorded_views,
    replace_value,
    same_functional,
    to_functional,
    traced_memory_id,
    view_root,
    with_recorded_views,
    wrapped_result,
    wrapped_results,
)
from aotgrad.torch_compat.functionalization import (
    COMPUTED_BEFORE_WRITTEN,
    ENTANGLED_LIST,
    REWRITES,
    VALUES_TO_WRITE,
    WITHOUT_FUNCTIONAL_FORM,
    EffectTokens,
    InPlaceWrite,
    ReadsValues,
    compute_and_write,
    expands_nothing,
    functional_mode,
    guarded_dispatch,
    is_list_of_tensors,
    sizes_of_view,
    writes_of,
)
from aotgrad.torch_compat.functorch_settings import PEER_PARAMETERS, PEER_SETTINGS, PeerParameter
from aotgrad.torch_compat.fused_optimizers import FUSED_UPDATES, default_foreach, record_float, record_fused_update
from aotgrad.torch_compat.generators import (
    GeneratorStates,
    OwnGenerator,
    draw_from,
    generator_key,
    generator_of,
    is_default_generator,
    trace_states,
    with_generator,
)
from aotgrad.torch_compat.global_state import (
    MODULE_SETTINGS,
    SETTING_GROUPS,
    SETTINGS,
    GlobalState,
    OpSettings,
    global_settings,
    math_library_is_slow,
    named_settings,
    ops_are_observed,
    torch_build,
)
from aotgrad.torch_compat.graphs import (
    erase_with_name,
    fake_mode_of,
    insert_deferred_checks,
    name_of_node,
    new_node,
    pass_counts,
    returns_pytree,
    takes_plain_arguments,
)
from aotgrad.torch_compat.guards import DictVersions, ShapeGuards, TensorGuard, shape_guards, versions_are_counted
from aotgrad.torch_compat.inductor.backend_name import Compile, named_inductor, take_inductors_name
from aotgrad.torch_compat.inductor.compilation import (
    DECOMPOSITIONS,
    INDUCTOR_PASSES,
    READ_ELSEWHERE,
    around_post_grad_passes,
    as_symints,
    call_in_inductor,
    compile_without_workers,
    disable_cudagraphs,
    fusions_that_save,
    holds_launchers,
    inductor_cache_tag,
    inductor_compile,
    inductor_config,
    inductor_context,
    inductor_decompositions,
    inductor_dump,
    inductor_graph_settings,
    inductor_has_users_lowerings,
    inductor_joint_passes,
    inductor_key,
    inductor_load,
    inductor_load_module,
    inductor_module,
    inductor_takes_generators,
    inductor_uses_cudagraphs,
    inductor_writes_over,
    is_inductor_setting,
    is_stable,
    keep_factors_of_sums,
    names_of_decompositions,
    names_of_inductor_decompositions,
    reported_output_strides,
    stable_text,
    tell_output_stride,
    why_no_inductor_setting,
)
from aotgrad.torch_compat.inductor.indices import leave_strides_unsimplified
from aotgrad.torch_compat.inductor.kernels import (
    collected_cpp_kernels,
    cpp_compilers,
    kernel_in,
    library_of,
    start_cpp_kernel,
    start_cpp_library,
)
from aotgrad.torch_compat.inductor.lowerings import (
    count_input_offsets,
    keep_host_numbers,
    use_aten_conversions,
    use_traced_offsets,
    view_traced_strides,
)
from aotgrad.torch_compat.inductor.reinplacing import (
    buffer_written_values,
    check_reads_of_targets,
    copy_into_written_concatenations,
    keep_writes_to_converted_views,
)
from aotgrad.torch_compat.inductor.scheduler import (
    check_reads_of_overwritten_values,
    keep_reads_of_written_values,
)
from aotgrad.torch_compat.inductor.vector_instructions import vector_instructions_by_one_probe
from aotgrad.torch_compat.jagged_attention import JaggedAttention
from aotgrad.torch_compat.kernel_layouts import (
    FAKES,
    LAYOUTS,
    LAYOUTS_ON_CPU,
    LayoutRule,
    Strides,
    as_first,
    as_operands,
    contiguous,
    eager_layouts,
    grouped_product,
    has_fake_of_torch,
    in_format_of_first,
    in_format_of_second,
    in_kernel_layout,
    is_laid_out,
    laid_out,
    with_strides,
)
from aotgrad.torch_compat.kernels import (
    DECOMPOSED_OTHERWISE,
    OUT_IS_LOST,
    ROUNDED_OTHERWISE,
    add_kernel,
    constructor_of,
    ctc_loss_of_lists,
    eager_composite,
    eager_dropout,
    eager_lstm,
    eager_matmul,
    eager_op,
    is_rounded_otherwise,
    lstm_with_eager_shapes,
    no_python_dispatcher,
    replace_kernels,
    single,
    symbolic_kernels,
    write_result,
)
from aotgrad.torch_compat.layouts import (
    AbsoluteGeometry,
    UnsafePieces,
    check_pieces,
    depends_on_offsets,
    is_compact,
    is_not_contiguous,
    is_plain,
    keep_layouts,
    keep_lazy_bits,
    keeps_geometry,
    making_arguments,
)
from aotgrad.torch_compat.logs import artifact_is_on, artifact_logger, structured_trace_is_on, trace_structured
from aotgrad.torch_compat.memory import (
    attach_to_storage,
    attached_to_storage,
    byte_range,
    bytes_of,
    content_checksum,
    contiguous_in_order,
    flat_alias,
    has_no_memory,
    has_storage,
    is_dense,
    is_dense_layout,
    is_expanded,
    memory_reference,
    owners_of,
    raise_version,
    raise_versions,
    share_version,
    sharers_of_memory,
    sharing_version,
    storage_bytes,
    storage_id,
    storage_key,
    strided_alias,
    strides,
    tensor_of_bytes,
    version_of,
    versions_at_entry,
    versions_of,
)
from aotgrad.torch_compat.ops import (
    COALESCES,
    CONJUGATE,
    FOR_INFERENCE_ONLY,
    KEEPS_ENTRIES,
    MAKES_ENTRIES,
    NEGATE,
    ORDINARY_VIEWS,
    PARTS_OF_SPARSE,
    READS_ENTRIES,
    READS_VALUES,
    OpKind,
    Read,
    argument_names,
    arguments_by_name,
    assert_later,
    cast,
    changed_arguments,
    decompositions_of,
    foreach_op,
    function_name,
    function_named,
    has_registered_effect,
    higher_order_name,
    higher_order_named,
    is_built_in,
    is_coalesced,
    is_effect_wrapper,
    is_foreach,
    is_impure,
    kind_of_op,
    op_description,
    op_named,
    overload_in_place,
    overloads,
    read_arguments,
    read_number,
    replaced_rules,
    schema_name,
    unsafe_view,
    written_arguments,
    written_names,
    zero_without_memory,
)
from aotgrad.torch_compat.overridable import functions_calling, without_override_check
from aotgrad.torch_compat.parallel_modules import PARALLEL_MODULE, refused_parallel_modules
from aotgrad.torch_compat.pre_dispatch import graph_before_autograd
from aotgrad.torch_compat.random import (
    RANDOM_STATE_BYTES,
    PythonGenerators,
    RandomReplay,
    StandInGenerator,
    advance_philox,
    can_draw_for_dynamo,
    clone_generator,
    default_generators,
    devices_that_draw,
    draw_again,
    draw_again_for_dynamo,
    draw_and_note,
    draw_and_record,
    draw_from_clone,
    kept_generators,
    kept_random_states,
    noted_draws,
    philox_draw,
    philox_state,
    random_state,
    random_state_of,
    replaced_generators,
    state_before_draws,
)
from aotgrad.torch_compat.recording import (
    DEVICE_OF,
    SubgraphTracer,
    TensorTracker,
    TrackedTensor,
    closed_over_in_trace,
    copy_current_meta,
    forget_constant,
    hidden_tracing_modes,
    is_constant,
    is_outside_of_kernels,
    known_numbers,
    proxy_mode,
    proxy_node,
    run_shape_function,
    set_coalesced,
    set_known_numbers,
    settle,
    subgraphs_are_traced,
)
from aotgrad.torch_compat.refusals import (
    ANOTHER_STORAGE,
    COMMUNICATES_IN_PLACE,
    COMPRESSED_LAYOUTS,
    EXTREMA,
    NEVER_FROM_A_PART,
    NEVER_FROM_ITSELF,
    OVERLAPPING,
    PRODUCTS,
    PROMOTING,
    REPLACES_STORAGE,
    RESHAPED_CONVERSION,
    SEVERAL_IN_ONE_PLACE,
    SMALLEST_OF_KIND,
    WRITES_TO_EXPANDED,
    fills_a_mask,
    is_known_empty,
    memory_key,
    misses,
    partly_overlap,
    refuse_communication_in_place,
    refuse_differentiable_rows,
    refuse_empty_dimension,
    refuse_lossy_cast,
    refuse_mixed_products,
    refuse_overlapping_operands,
    refuse_stale_views,
    refuse_unrecordable_write,
    refuse_view_across_gaps,
    refuses_lazy_bits,
    share_elements,
    views_across_gaps,
)
from aotgrad.torch_compat.scans import separate_results_of_scans
from aotgrad.torch_compat.shapes import (
    NEED_STATIC_SIZES,
    AskingShapeEnv,
    answered_by,
    any_depends_on_data,
    assumed_equal,
    check_bounds,
    deferred_checks,
    ends_within,
    guard_count,
    guards_of_mode,
    has_symbolic_shape,
    has_symbols,
    has_unknown_sizes,
    hints,
    holds_of_counts,
    is_multiple,
    known_contiguous,
    known_equal,
    lacks_shape_function,
    lacks_symbolic_floats,
    may_equal,
    symbolic_dims,
    symbolic_dims_by_position,
)
from aotgrad.torch_compat.transforms import (
    VMAP_MODE,
    Dual,
    Vmap,
    below_gradient,
    below_jvp,
    dispatch_transformed,
    forward_mode_is_open,
    forward_mode_level,
    gradients_inside,
    in_vmap_mode,
    innermost,
    is_batched,
    is_differentiated,
    is_tracked,
    is_transformed,
    is_wrapped,
    jvp_is_open,
    older_vmaps,
    only_forward_mode,
    only_transforms,
    only_vmap,
    open_transforms,
    open_vmaps,
    outside_transforms,
    pack_dual,
    transform_is_open,
    unpack_dual,
)
from aotgrad.torch_compat.views import (
    HISTORY_GETTERS,
    INHERITED_GETTERS,
    has_usable_history,
    is_converted_view,
    is_differentiable_view,
    is_forbidden_after_a_write,
    is_hooked_view,
    is_made_by_function,
    is_stale_view,
    is_view_by_schema,
    is_view_of_leaf,
    kind_of_value,
    made_under_no_grad,
)
from aotgrad.torch_compat.wrapper_subclasses import (
    CACHED_PARTS,
    Given,
    ViewOp,
    alias_with_version,
    another_object,
    dispatches_itself,
    flattened,
    has_own_dispatch_rules,
    is_device_mesh,
    is_opaque_value,
    is_ragged_size,
    is_wrapper_subclass,
    ops_of_view,
    other_objects,
    outside_of_modes,
    part_with_version,
    remember_ragged_size,
    replayed_view,
    tracked_views,
    with_parts,
)
from aotgrad.torch_compat.zero_tensors import symbolic_zero_tensors
