"""A whole training step as one graph: forward, backward, gradients, clipping and the optimizer's update.

`step.train_step` makes the callable. `state` finds the tensors and numbers that a step reads and writes, with those of
optimizers (`optimizer_state`) and of scalers (`scaler_state`); a read is cheap while nothing but numbers was assigned.
`numbers` become inputs, and `names` are for reports. `trace` runs the step once on traced values in their place (`swap`),
with `arguments` in one list and with nodes for `optimizer_calls`; `refusals` has the errors. `update` writes what a plan
returns. The step is a function of its state, without autograd around it, so `plan_cache` finds its plans and `pipeline`
compiles them.
"""
