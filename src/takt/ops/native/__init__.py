"""`Ops` on CPUs: captures a model's operators into programs that `takt._native` replays.

Owns the thread pool, packed weights and KV pools; knows no model and no request. Importing it
raises `ConfigError` where the module is missing or of another build.
"""

from takt.ops.native.source_stamp import check_module

check_module()
