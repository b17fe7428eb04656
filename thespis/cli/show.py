"""`thespis show ARCH`: the graph of roles and edges, as text or as a mermaid drawing."""

from __future__ import annotations

from collections import Counter

from thespis.cli.parser import Parser
from thespis.cli.train import settings
from thespis.core.program import Program
from thespis.training.registry import architecture


def run(words: list[str]) -> int:
    parser = Parser(
        "thespis show",
        usage="thespis show ARCH [--format text|mermaid] [settings]",
        description="Print an architecture's roles, processes and edges. All settings of `thespis train ARCH` are "
        "taken, e.g. --actors 8; those that decide what there is are shown.",
    )
    parser.add_argument("arch", help="the architecture")
    parser.add_argument(
        "--format",
        choices=["text", "mermaid"],
        default="text",
        help="text, or a flowchart for a Markdown page (default: text)",
    )
    args, flags = parser.parse_known_args(words)

    module = architecture(args.arch)
    program = module.program(settings(args.arch, flags))
    program.check()
    if args.format == "mermaid":
        print(mermaid(program))
    else:
        print(f"{(module.__doc__ or '').strip()}\n\n{text(program)}")
    return 0


def text(program: Program) -> str:
    """Processes with their roles, then the arrows."""
    numbers = Counter(spec.role for spec in program.roles)
    lines = ["processes"]
    for home, count in _homes(program).items():
        specs = program.processes[home]
        label = specs[0].role if len(specs) == 1 else home
        roles = ", ".join(f"{spec.role} ({spec.kind.__name__ if spec.kind else '?'})" for spec in specs)
        restarts = min(spec.restarts for spec in specs)
        lines.append(f"  {label:12} x{count:<4} {roles}" + (f"  restarts {restarts}" if restarts else ""))
    lines.append("edges")
    for arrow in program.arrows():
        payloads = arrow.carries
        line = f"  {arrow.caller:12} x{numbers[arrow.caller]:<4} --{payloads.kind}--> {arrow.service}.{arrow.method}"
        lines.append(f"{line}({payloads.takes})" + (f" -> {payloads.gives}" if payloads.gives else ""))
    return "\n".join(lines)


def mermaid(program: Program) -> str:
    """A flowchart: a box per role, a frame per shared process, an arrow per edge as its payload travels."""
    lines = ["flowchart LR"]
    for home, count in _homes(program).items():
        specs = program.processes[home]
        if len(specs) > 1:
            lines.append(f"  subgraph {home}")
        for spec in specs:
            times = f" ×{count}" if count > 1 else ""
            lines.append(f'  {spec.role}["{spec.role}{times}"]')
        if len(specs) > 1:
            lines.append("  end")
    for caller, _, service, method, carries in program.arrows():
        payloads = [payload for payload in (carries.takes, carries.gives) if payload]
        label = f"{method}: {', '.join(payloads)}" + ("" if carries.kind in payloads else f" ({carries.kind})")
        if len(payloads) > 1:
            lines.append(f'  {caller} <-->|"{label}"| {service}')
        else:
            start, end = (caller, service) if carries.takes else (service, caller)
            lines.append(f'  {start} -->|"{label}"| {end}')
    return "\n".join(lines)


def _homes(program: Program) -> dict[str, int]:
    """One process of each kind, and how many there are alike."""
    kinds: dict[tuple[str, ...], str] = {}
    counts: Counter[str] = Counter()
    for home, specs in program.processes.items():
        counts[kinds.setdefault(tuple(spec.role for spec in specs), home)] += 1
    return dict(counts)
