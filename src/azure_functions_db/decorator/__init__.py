"""The decorators that give a function its trigger, its inputs and its outputs."""
