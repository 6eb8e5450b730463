"""EasyR1's own trainer on present versions of its dependencies, on machines without a GPU, and with what we read of it.

Not one of its files is changed. `lines.py` lists single lines of EasyR1, each with what stands there instead and why;
`imports.py` replaces them while Python reads EasyR1's modules, in the driver and in each of Ray's workers. `main.py` is
the entry point, `reports.py` what a run writes beyond EasyR1's own words, `models.py` the weights for vLLM and
transformers, `adapters.py` LoRA, `devices.py` what a machine without a GPU lacks.
"""
