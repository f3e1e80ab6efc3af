"""Every private name of torch that stepladder uses: what for, and what happens without it.

All were seen in torch 2.13 and used with torch 2.11 on a GPU machine, unless an entry says
otherwise. A name with a feature refuses that feature alone, in one line; any other has a fallback.
"""

from .private_name import PrivateName, listed, needed

UPGRADE = "Use torch 2.11 to 2.13."
PYTREE = listed(
    "torch.utils._pytree",
    "tree_map tree_leaves",
    "nested inputs and outputs, those of registered classes too",
    "dictionaries, lists, tuples and named tuples are walked by our own code",
)
DISPATCH = (
    *needed(
        "torch.utils._python_dispatch",
        "TorchDispatchMode",
        "seeing every operation with its tensors",
        ("torch", "counting operations (FLOPs, activations, memory by owner, traces)", UPGRADE),
    ),
    PrivateName(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "running a module without numbers",
        field="torch",
        feature="describing a module without running it",
        remedy="Run it instead: describe(module, sample=batch, probe=True).",
    ),
    *needed(
        "torch._subclasses.fake_tensor",
        "DataDependentOutputException DynamicOutputShapeException",
        "answering code that reads numbers of fake tensors",
        ("rehearse", "rehearsing a step", UPGRADE),
    ),
    *needed(
        "torch._C",
        "_current_graph_task_id",
        "telling a backward pass from a forward pass",
        ("torch", "measuring memory by owner", UPGRADE),
    ),
    *needed(
        "torch",
        "Tensor._make_wrapper_subclass _C.DisableTorchFunctionSubclass",
        "activations of another pipeline stage: a shape, a type and a device without numbers",
        ("layout.pipeline", "pipeline parallelism", "Use pipeline=1."),
    ),
    *listed(
        "torch._ops.OpOverload",
        "_schema",
        "an operator's argument names, and whether it writes in place",
        "no argument names; a trailing underscore says that it writes in place",
        on_instances=True,
    ),
)
OPERATORS = (
    *listed(
        "torch.ops.aten",
        "_autocast_to_full_precision _autocast_to_reduced_precision _convolution _grouped_mm"
        " _safe_softmax _scaled_mm _softmax _softmax_backward_data _to_copy _unsafe_view"
        " _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention"
        " _scaled_dot_product_flash_attention_backward"
        " _scaled_dot_product_flash_attention_for_cpu_backward",
        "recognising operators in a trace, and attention in exact runs",
        "the operator is never met; exact runs attend by torch's own kernels",
    ),
    *listed(
        "torch.ops._c10d_functional",
        "all_reduce all_to_all_single",
        "keeping the results of collectives in selective activation checkpointing",
        "the operator is never met",
    ),
    *needed(
        "torch.ops._c10d_functional",
        "all_gather_into_tensor reduce_scatter_tensor wait_tensor",
        "collectives of context parallelism that torch.compile can trace",
        ("layout.context", "context parallelism", "Use context=1."),
    ),
    PrivateName("torch._foreach_norm", "all gradients' norms in one call", "one call a tensor"),
    PrivateName("torch._foreach_div_", "clipping in one call", "one call a tensor"),
    PrivateName("torch._foreach_lerp_", "averaging weights in one call", "one call a tensor"),
    *needed("torch", "_scaled_mm", "matmuls of float8 matrices", ("precision", "fp8", "Use bf16.")),
)
COMPILER = (
    PrivateName(
        "torch._inductor.custom_graph_pass.CustomGraphPass",
        "our passes over compiled graphs, cached with the code they lead to",
        "modules are compiled without our passes",
    ),
    PrivateName(
        "torch._dynamo",
        "importing the compiler once, before ranks are forked",
        "every rank imports it when it needs it",
    ),
    PrivateName(
        "torch._dynamo.callback.callback_handler",
        "saying which step compiled something, and how long that took",
        "no step says so",
    ),
    *needed(
        "torch._inductor.compile_fx",
        "compile_fx",
        "compiling a graph of which recorded steps are replayed behind the compiler's guards",
        ("graphs", "recording steps of a module that is compiled whole", "Leave graphs out."),
    ),
)
CUDA = (
    *listed(
        "torch.cuda.memory",
        "_record_memory_history _snapshot _dump_snapshot",
        "the allocator's own history beside the memory timeline",
        "the timeline has no allocator history",
    ),
    *needed(
        "torch.cuda",
        "_sleep",
        "timing kernels without launch gaps",
        ("bench kernels", "timing kernels on a GPU", UPGRADE),
    ),
)
STORAGES = (
    PrivateName("torch.UntypedStorage._cdata", "which storage a tensor lies in", "its Python id"),
    PrivateName(
        "torch.Tensor._version",
        "whether a tensor was written to",
        field="torch",
        feature="offload=activations, and pipeline of a module that declares no blocks,",
        remedy="Leave both out, or use torch 2.11 to 2.13.",
    ),
    *listed(
        "torch.Tensor",
        "_backward_hooks _post_accumulate_grad_hooks",
        "calling the hooks on a parameter once a batch, with the whole gradient",
        "torch calls them in every backward pass, with what a rank has of the gradient",
    ),
    *listed(
        "torch.optim.Optimizer",
        "_optimizer_step_pre_hooks _optimizer_step_post_hooks",
        "trying an optimizer together with the hooks around its step",
        "it is tried without them",
        on_instances=True,
    ),
)
MODULES = (
    *listed(
        "torch.nn.Module",
        "_parameters _buffers _modules _non_persistent_buffers_set _forward_pre_hooks "
        "_forward_hooks",
        "replacing children and parameters in place",
        "none: torch's own `parameters()` and `state_dict()` read them",
        on_instances=True,
    ),
    *listed(
        "torch.nn.Module",
        "_compiled_call_impl _call_impl",
        "compiling modules of torch's own classes, and putting a compiled call away",
        "such modules run uncompiled, and no module counts as compiled",
    ),
    *listed(
        "torch.nn.Module",
        "_apply",
        "rotary tables that stay float32, and moving fake parameters",
        "they are converted, and torch moves them",
    ),
    *listed("torch.nn.Conv2d", "_conv_forward", "folding images of few channels", "none is folded"),
    *listed(
        "torch._dynamo.eval_frame.OptimizedModule",
        "_orig_mod",
        "finding the module that torch.compile wrapped",
        "the wrapper is described as a module of its own",
        on_instances=True,
    ),
)
C10D = "torch.distributed.distributed_c10d"
GROUPS = (
    *needed(
        C10D,
        "_get_default_store",
        "notes between ranks, and the hang watchdog",
        ("ranks", "training on several ranks", UPGRADE),
    ),
    *listed(C10D, "_set_pg_timeout", "time-outs of every group", "torch's own time-outs stand"),
    *listed(C10D, "_world", "the list of this rank's groups", "a hang is explained without counts"),
    *listed(
        "torch.distributed.ProcessGroup",
        "_get_sequence_number_for_group",
        "how many collectives a rank has called",
        "a hang is explained without counts",
    ),
    *listed(
        "torch._C._distributed_c10d",
        "_dump_nccl_trace _dump_fr_trace",
        "torch's flight recorder: which collective a rank is in",
        "a hang is explained without the collective's name",
    ),
    *listed(
        "torch.distributed.tensor",
        "_redistribute._gen_transform_infos _redistribute.clear_redistribute_planner_cache"
        " _collective_utils.MeshTopoInfo.build_from_mesh debug._clear_sharding_prop_cache",
        "forgetting the meshes of an earlier world in the same process",
        "nothing is cleared, as in a process that has one world",
    ),
    *needed(
        "torch.testing._internal.distributed.fake_pg",
        "FakeStore",
        "a world of many ranks of which one process plays one",
        ("rehearse", "rehearsing a plan of several ranks", UPGRADE),
    ),
)
SHARDING = (
    *needed(
        "torch",
        "utils._python_dispatch._disable_current_modes _C.DisableTorchFunction",
        "meshes that know their ranks while tensors have no numbers",
        ("rehearse", "rehearsing a plan of several ranks", UPGRADE),
    ),
    *needed(
        "torch.distributed.device_mesh.DeviceMesh",
        "_flatten _concatenate",
        "one group of ranks along several axes of the layout",
        ("layout", "a layout that joins axes (replicate, shard and context)", "Use one of them."),
    ),
    PrivateName(
        "torch.distributed.tensor.placement_types._StridedShard",
        "cutting a fused matrix of queries, keys and values in each third",
        field="layout.tensor",
        feature="tensor parallelism of fused queries, keys and values",
        remedy="Use tensor=1.",
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_param._chunk_with_empty",
        "rehearsing a rank without cutting the slices of all others",
        "all slices are cut, which takes longer",
    ),
    PrivateName(
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
        "where a rank's slice of a parameter begins",
        field="checkpoint",
        feature="saving sharded parameters",
        remedy=UPGRADE,
    ),
    PrivateName(
        "torch.distributed._composable.replicate_with_fsdp.replicate",
        "whole copies of modules with cut parameters",
        field="layout.replicate",
        feature="replicate with tensor or pipeline",
        remedy="Use shard instead.",
    ),
    PrivateName(
        "torch.autograd.Variable._execution_engine",
        "zeros for parameters that a rank did not use, before torch 2.13",
        field="layout.shard",
        feature="zero2 and zero3 of a module that does not declare its blocks",
        remedy="Use zero1 or ddp, or torch 2.13.",
    ),
)
DDP = (
    PrivateName(
        "torch.distributed.Reducer._rebuild_buckets",
        "the same order of gradients in a resumed run",
        field="zero",
        feature="ddp, to resume exactly,",
        remedy="Use zero2 or zero3.",
    ),
    *listed(
        "torch.nn.parallel.DistributedDataParallel",
        "_set_ddp_runtime_logging_sample_rate _get_ddp_logging_data",
        "how long a step waited for gradients",
        "DDP's own waits are not counted",
    ),
)
SET_BY_INIT = ("_pcontext", "_remaining_restarts")
ELASTIC = tuple(
    PrivateName(
        f"torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent.{word}",
        "starting ranks again after a failure",
        field="launch",
        feature="launching several ranks",
        remedy="Start them by torchrun.",
        on_instances=word in SET_BY_INIT,
    )
    for word in ("_rendezvous", "_monitor_workers", "_restart_workers", "_shutdown", *SET_BY_INIT)
)
LOADING = listed(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "_shutdown_workers",
    "ending data workers at once",
    "they end with their iterator",
)
NAMES: tuple[PrivateName, ...] = (
    *PYTREE, *DISPATCH, *OPERATORS, *COMPILER, *CUDA, *STORAGES, *MODULES, *GROUPS, *SHARDING,
    *DDP, *ELASTIC, *LOADING,
)  # fmt: skip
BY_PATH = {name.path: name for name in NAMES}
