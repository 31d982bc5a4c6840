"""What happens in one call: its arguments are bound, and guards find a plan, or one is compiled.

`binding` takes calls of functions and modules apart into a `call.Call`, with its `arguments`, `module_state`,
`generators` and the parts of `wrappers`. `cache.PlanCache` finds its plan, an `entry.CachedPlan`; on a miss, `compile`
makes one with a `compiler`. `eager_fallback` runs eagerly what cannot be compiled, if the options say so. What a function
depends on besides its arguments is its `function_state`; `key_differences` says what has changed. `assigned_state` is what
calls assign to a module. `outside_values` undoes what a trace that fails has changed, and keeps tensors of the trace out
of what the function captures. A `replayed_call` runs once more for a gradient in another form. One `lock` is held while
anything is traced or compiled; compilers may leave work `unfinished`. Stages import `lock` and `unfinished` alone;
frontends, `transforms`, `export` and `inspect` the other names.
"""
