"""What an algorithm is: settings, and what they build. It knows no roles and no processes."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.core.user_code import locate

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.acting import Stepper
    from thespis.networks.policies import PolicyNetwork


class Exploration(Protocol):
    """What an algorithm says of its exploration. A policy is set to the amount before every unroll."""

    def describe(self) -> str:
        """How training episodes explore, in words: why their return may differ from that of an evaluation."""

    def amount(self, steps: int, environments: range, total: int) -> float | Array | None:
        """How much these `environments` of `total` explore after `steps` steps of all actors; None if the policy
        explores by itself."""


@dataclass(frozen=True)
class Sampled:
    """Actions are drawn from the policy, whose entropy decides how much it explores."""

    def describe(self) -> str:
        return "actions are drawn from the policy"

    def amount(self, steps: int, environments: range, total: int) -> None:
        return None


class Item(Protocol):
    """What an algorithm learns from. An architecture that carries the kind takes the algorithm."""

    KIND: ClassVar[str]


Items = TypeVar("Items", bound=Item, covariant=True)


@dataclass(frozen=True)
class Algorithm(Generic[Items]):
    """Settings of an algorithm, and what they build: a network, what acts with it, and the update that trains it.

    An algorithm extends it with a default for each of these fields, its `exploration`, its own settings, and
    `build_update`. Its modules load torch only where something is built, so that `--help` answers at once.
    """

    items: Items
    network: NetworkConfig
    optimizer: Any

    if TYPE_CHECKING:

        @property
        def exploration(self) -> Exploration:
            """How training episodes explore. An algorithm declares the field, or derives it from other settings."""

    @property
    def name(self) -> str:
        """What `--algorithm` calls it: the name of its module here, or where a user's own class is found."""
        package, _, module = type(self).__module__.rpartition(".")
        return (self.alias or module) if package == __package__ else locate(type(self))

    @property
    def alias(self) -> str:
        """Another name than that of its module, which an algorithm here has with these settings; by default none."""
        return ""

    def validate(self, spaces: Spaces) -> None:
        """Refuse what cannot be learned in these spaces, with a sentence that says what to do."""
        from thespis.envs.spaces import one_part

        one_part(spaces.action_space)

    def check_factory(self, spaces: Spaces, wanted: type[object], made: str) -> None:
        """Refuse a network of the user's own that does not extend `wanted`. `made`: what it is instead, in words."""
        if self.network.factory and not isinstance(self.build_network(spaces, seed=0), wanted):
            name = f"{wanted.__module__}.{wanted.__name__}".removeprefix("thespis.")
            raise ThespisError(f"{self.network.factory!r} makes {made}; extend {name}")

    @property
    def off_policy(self) -> bool:
        """Whether the age of the policy that acted is corrected for: a worker may act on while it learns."""
        return False

    @property
    def averages(self) -> bool:
        """Whether the loss is a mean over the steps of a batch, rather than their sum."""
        return True

    def check_batch(self, environments: int) -> None:
        """Refuse settings that a batch of one unroll of `environments` environments is too small for."""

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """What makes the network of two spaces and `self.network`: by default a policy and a value."""
        from thespis.networks.policies import ActorCritic

        return ActorCritic

    def build_network(self, spaces: Spaces, seed: int) -> PolicyNetwork:
        """The network, initialised from `seed` alone."""
        from thespis.networks.build import build_network

        return build_network(self.network_class(), self.network, spaces, seed)

    def build_stepper(self, network: PolicyNetwork, rng: np.random.Generator) -> Stepper:
        """What acts with the network. `rng`: draws actions."""
        from thespis.networks.acting import Stepper

        return Stepper(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """What turns batches of items into gradients of the network.

        `rng`: whatever is random in the update. `count_updates`: all updates of the network's parameters so far, where
        other learners make some of them as well.
        """
        raise NotImplementedError


def check_feed_forward(network: NetworkConfig) -> None:
    """Refuse an LSTM where a batch holds transitions from anywhere, without the steps before them."""
    if network.lstm:
        raise ThespisError("single transitions are learned from here, so --network.lstm must stay 0")


def carried(config: type[Any]) -> tuple[str, ...]:
    """The kinds of item that an architecture carries, by its config: `algorithm: Algorithm[Unrolls | Rounds]`.

    An architecture of one algorithm may declare that class instead, and carries its items.
    """
    hint = _declared(config)
    items = typing.get_args(hint)[0] if typing.get_origin(hint) is Algorithm else typing.get_type_hints(hint)["items"]
    return tuple(kind.KIND for kind in typing.get_args(items) or (items,))


def fitting(config: type[Any]) -> list[str]:
    """The names of the algorithms that an architecture takes; its own default is the first."""
    from thespis.algorithms import algorithms

    default = config().algorithm.name
    return sorted(
        (name for name, value in algorithms().items() if _fits(config, value)), key=lambda name: (name != default, name)
    )


def chosen(factory: Callable[[], Algorithm[Any]]) -> Any:
    """The field of a config that holds an algorithm; a user may name another one. `factory`: makes the default."""

    def choose(given: Any, config: type[Any]) -> Algorithm[Any]:
        from thespis.algorithms import algorithm

        found = algorithm(given, fitting(config))
        check_carried(config, found)
        return found

    return inline(factory, choose=choose)


def check_carried(config: type[Any], algorithm: Algorithm[Any]) -> None:
    """Refuse an algorithm whose items the architecture of this config cannot carry."""
    if not _fits(config, algorithm):
        raise ThespisError(
            f"--algorithm {algorithm.name} learns from {algorithm.items.KIND}, and this architecture carries "
            f"{' or '.join(carried(config))}; choose {', '.join(fitting(config))}"
        )


def _fits(config: type[Any], algorithm: Algorithm[Any]) -> bool:
    kind = typing.get_origin(_declared(config)) or _declared(config)
    return isinstance(algorithm, kind) and algorithm.items.KIND in carried(config)


def _declared(config: type[Any]) -> Any:
    """The type of the field `algorithm`: `Algorithm[...]`, or one that extends it."""
    return typing.get_type_hints(config)["algorithm"]
