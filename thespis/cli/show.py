"""`thespis show ARCH`: prints the graph of roles and edges as text, a mermaid flowchart or an SVG drawing."""

from __future__ import annotations

from collections import Counter

from thespis.cli.parser import Parser
from thespis.cli.train import parse_settings
from thespis.core.program import Program
from thespis.training.registry import architecture


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "thespis show",
        usage="thespis show ARCH [--format text|mermaid|svg] [settings]",
        description="Print an architecture's roles, processes and edges. All settings of `thespis train ARCH` apply, "
        "e.g. --actors 8.",
    )
    parser.add_argument("arch", help="Architecture, or file of a custom architecture.")
    parser.add_argument(
        "--format",
        choices=["text", "mermaid", "svg"],
        default="text",
        help="Text, mermaid (flowchart for a Markdown page) or svg. (default: text)",
    )
    args, flags = parser.parse_known_args(words)

    module = architecture(args.arch)
    program = module.program(parse_settings(args.arch, flags))
    program.check()
    if args.format == "mermaid":
        print(mermaid(program))
    elif args.format == "svg":
        from thespis.report.topology_svg import topology_svg

        print(topology_svg(program))
    else:
        print(f"{(module.__doc__ or '').strip()}\n\n{text(program)}")
    return 0


def text(program: Program) -> str:
    """Return the processes with their roles, then the edges and the notes, as text."""
    numbers = Counter(spec.role for spec in program.roles)
    lines = ["processes"]
    for process, count in _process_counts(program).items():
        specs = program.processes[process]
        label = specs[0].role if len(specs) == 1 else process
        roles = ", ".join(f"{spec.role} ({spec.kind.__name__ if spec.kind else '?'})" for spec in specs)
        restarts = min(spec.restarts for spec in specs)
        lines.append(f"  {label:12} x{count:<4} {roles}" + (f"  restarts {restarts}" if restarts else ""))
    lines.append("edges")
    for arrow in program.arrows():
        payloads = arrow.carries
        line = f"  {arrow.caller:12} x{numbers[arrow.caller]:<4} --{payloads.kind}--> {arrow.service}.{arrow.method}"
        lines.append(f"{line}({payloads.takes})" + (f" -> {payloads.gives}" if payloads.gives else ""))
    lines += ["notes", *(f"  {note}" for note in program.notes)] if program.notes else []
    return "\n".join(lines)


def mermaid(program: Program) -> str:
    """Return a flowchart: a box per role, a frame per shared process, and an arrow per edge in payload direction."""
    lines = ["flowchart LR"]
    for process, count in _process_counts(program).items():
        specs = program.processes[process]
        if len(specs) > 1:
            lines.append(f"  subgraph {process}")
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


def _process_counts(program: Program) -> dict[str, int]:
    """The first process of each kind, and the number of processes of that kind."""
    kinds: dict[tuple[str, ...], str] = {}
    counts: Counter[str] = Counter()
    for process, specs in program.processes.items():
        counts[kinds.setdefault(tuple(spec.role for spec in specs), process)] += 1
    return dict(counts)
