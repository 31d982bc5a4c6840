"""The way of one call: its arguments are bound, and a plan is found by its guards, or compiled.

`binding.bind` turns a function or module into what is called, with its `arguments`, `module_state` and `generators`;
`cache.PlanCache` finds the plan of a call, an `entry.CachedPlan`, or has `compile` make one with a `compiler`. `on_error`
runs eagerly what cannot be compiled, if asked to. One `lock` is held while something is traced or compiled. Frontends,
`transforms`, `export` and `inspect` import these names; stages import `lock` alone.
"""
