"""Command-line options made from the option tables of `takt.config`, and back into them."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from takt.bench.options import BenchOptions
from takt.config import (
    CacheOptions,
    EngineConfig,
    ModelConfigOptions,
    ParallelOptions,
    SchedulerOptions,
    ServerOptions,
)
from takt.gateway.options import GatewayOptions
from takt.plan.simulate_options import SimulateOptions
from takt.verify.options import VerifyOptions

OptionTable = (
    type[ModelConfigOptions]
    | type[CacheOptions]
    | type[SchedulerOptions]
    | type[ParallelOptions]
    | type[ServerOptions]
    | type[BenchOptions]
    | type[GatewayOptions]
    | type[VerifyOptions]
    | type[SimulateOptions]
)

ENGINE_TABLES: tuple[OptionTable, ...] = (
    ModelConfigOptions,
    CacheOptions,
    SchedulerOptions,
    ParallelOptions,
)
SERVER_TABLES: tuple[OptionTable, ...] = (*ENGINE_TABLES, ServerOptions)

PANELS: dict[OptionTable, str] = {
    ModelConfigOptions: "Model",
    CacheOptions: "KV cache",
    SchedulerOptions: "Scheduler",
    ParallelOptions: "Ranks",
    ServerOptions: "Server",
    BenchOptions: "Load",
    GatewayOptions: "Gateway",
    VerifyOptions: "Verification",
    SimulateOptions: "Simulation",
}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_switch(field: dataclasses.Field[Any]) -> bool:
    return field.type in (bool, "bool")


def with_options(tables: Sequence[OptionTable], *, skip: Sequence[str] = ()) -> Callable[..., Any]:
    """Gives a command one keyword per field of `tables`, as typer reads them.

    The command must take `**options`; the fields named in `skip` are left to its own signature.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = own + [
            _parameter(table, field, hints[field.name])
            for table in tables
            for hints in [typing.get_type_hints(table)]
            for field in dataclasses.fields(table)
            if field.name not in skip
        ]

        def call(**values: Any) -> Any:
            return command(**values)

        call.__name__ = command.__name__
        call.__doc__ = command.__doc__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        return call

    return decorate


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """The engine's part of parsed options; raises `ConfigError` for values that cannot work."""
    return EngineConfig(
        model=_pick(ModelConfigOptions, options),
        cache=_pick(CacheOptions, options),
        scheduler=_pick(SchedulerOptions, options),
        parallel=_pick(ParallelOptions, options),
    )


def server_options(options: dict[str, Any]) -> ServerOptions:
    options_read: ServerOptions = _pick(ServerOptions, options)
    return options_read


def bench_options(options: dict[str, Any]) -> BenchOptions:
    """Raises `ConfigError` for values that cannot work."""
    options_read: BenchOptions = _pick(BenchOptions, options)
    return options_read


def verify_options(options: dict[str, Any]) -> VerifyOptions:
    """Raises `ConfigError` for values that cannot work."""
    options_read: VerifyOptions = _pick(VerifyOptions, options)
    return options_read


def simulate_options(options: dict[str, Any]) -> SimulateOptions:
    options_read: SimulateOptions = _pick(SimulateOptions, options)
    return options_read


def _pick(table: Any, options: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(table)}
    return table(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if name in names
        }
    )


def _parameter(
    table: OptionTable, field: dataclasses.Field[Any], annotation: Any
) -> inspect.Parameter:
    default: Any = field.default
    flags = [flag_of(field.name), *field.metadata.get("short", ())]
    if is_switch(field):
        flags = [f"{flags[0]}/{flag_of('no_' + field.name)}"]
    if typing.get_origin(annotation) is tuple:
        annotation = list[str]
        default = list(default)
    help_text = field.metadata["help"]
    option = typer.Option(
        *flags,
        help=help_text,
        rich_help_panel=PANELS[table],
        show_default=("on" if default else "off") if is_switch(field) else True,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[_optional(annotation), option],
    )


def _optional(annotation: Any) -> Any:
    """`X | None` in the spelling that typer reads."""
    if isinstance(annotation, types.UnionType):
        inner = next(a for a in typing.get_args(annotation) if a is not type(None))
        return typing.Optional[inner]  # noqa: UP045  (a runtime value, not an annotation)
    return annotation
