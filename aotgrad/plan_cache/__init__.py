"""What happens in one call: its arguments are bound, and guards find a plan, or one is compiled.

`binding` takes calls of functions and modules apart into a `call.Call`, with its `arguments`, `module_state` and
`generators`. `cache.PlanCache` finds its plan, an `entry.CachedPlan`; on a miss, `compile` makes one with a `compiler`.
`eager_fallback` runs eagerly what cannot be compiled, if the options say so. One `lock` is held while anything is traced or
compiled; compilers may leave work `unfinished`. Frontends, `transforms`, `export` and `inspect` import these names; stages
import `lock` and `unfinished` alone.
"""
