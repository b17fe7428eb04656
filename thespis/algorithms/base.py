"""Base class of algorithms: settings, and builders of network, policy runner and update.

An algorithm does not know roles or processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from thespis.core.config import NetworkConfig, OptimizerConfig
from thespis.core.errors import ThespisError
from thespis.core.user_code import locate

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner


class Exploration(Protocol):
    """How an algorithm explores. An actor sets its policy to `amount` before every unroll."""

    def describe(self) -> str:
        """How training episodes explore, as one phrase; explains why their returns may differ from evaluations."""

    def amount(self, steps: int, environments: range, total: int) -> float | Array | None:
        """Exploration of `environments` out of `total`, after `steps` steps of all actors: epsilon or noise.

        None if the policy explores by itself.
        """


@dataclass(frozen=True)
class Sampled:
    """Exploration by sampling actions from the policy; the policy's entropy sets the amount."""

    def describe(self) -> str:
        """See `Exploration`."""
        return "actions are sampled from the policy"

    def amount(self, steps: int, environments: range, total: int) -> None:
        """None: the policy explores by itself."""
        return None


class Item(Protocol):
    """A kind of training data. An architecture takes an algorithm if it carries the algorithm's kind."""

    KIND: ClassVar[str]


Items = TypeVar("Items", bound=Item, covariant=True)


@dataclass(frozen=True)
class Algorithm(Generic[Items]):
    """Base of all algorithms: settings that build a network, a policy runner and an update.

    A subclass adds a default for `items`, its own settings, and `build_update`. It declares `network`, `optimizer` and
    `exploration` again for other defaults. Import torch only inside the build methods, so that `--help` answers at
    once.
    """

    DIVISIBLE: ClassVar[bool] = False
    """Whether the update is a `SharedUpdate`, which several learners can make together."""

    SHARDABLE: ClassVar[bool] = False
    """Whether the update uses its network only to compute outputs and first derivatives, so that the network may be
    divided over several processes."""

    items: Items
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: Any = field(default_factory=OptimizerConfig)

    if TYPE_CHECKING:

        @property
        def exploration(self) -> Exploration:
            """The exploration of training episodes, by default `Sampled`. A subclass has a field or a property."""

    else:
        exploration = Sampled()

    @property
    def name(self) -> str:
        """The `--algorithm` name: the module's name for a built-in algorithm, `file.py::Class` for a custom one."""
        package, _, module = type(self).__module__.rpartition(".")
        return (self.alias or module) if package == __package__ else locate(type(self))

    @property
    def alias(self) -> str:
        """The name of a built-in variant, such as `a2c` of V-trace; empty to use the module's name."""
        return ""

    def validate(self, spaces: Spaces) -> None:
        """Refuse spaces that the algorithm cannot learn in. The error says what to change."""
        from thespis.envs.spaces import refuse_composite_actions

        refuse_composite_actions(spaces.action_space)

    def check_factory(self, spaces: Spaces, wanted: type[object], made: str) -> None:
        """Refuse a custom network that does not extend `wanted`. `made` describes such a network in the error."""
        if self.network.factory and not isinstance(self.build_network(spaces, seed=0), wanted):
            name = f"{wanted.__module__}.{wanted.__name__}".removeprefix("thespis.")
            raise ThespisError(f"{self.network.factory!r} builds {made}; extend {name}")

    @property
    def off_policy(self) -> bool:
        """Whether the update corrects for lag. If so, a worker acts while its gradients are under way."""
        return False

    @property
    def averages(self) -> bool:
        """Whether the loss is the mean over the steps of a batch, rather than the sum."""
        return True

    @property
    def indivisible(self) -> str:
        """Why several learners cannot make an update of this algorithm together; empty if they can."""
        return "" if self.DIVISIBLE else "its update needs the whole batch in one place"

    def check_batch(self, environments: int) -> None:
        """Refuse settings that need a larger batch than one unroll of `environments` environments."""

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """The network's constructor, called with two spaces and `self.network`; by default `ActorCritic`."""
        from thespis.networks.policies import ActorCritic

        return ActorCritic

    def build_network(self, spaces: Spaces, seed: int) -> PolicyNetwork:
        """Build the network. Its initial weights depend on `seed` alone."""
        from thespis.networks.build import build_network

        return build_network(self.network_class(), self.network, spaces, seed)

    def build_policy_runner(self, network: PolicyNetwork, rng: np.random.Generator) -> PolicyRunner:
        """Build the policy runner, which acts with the network. `rng` samples actions."""
        from thespis.networks.policy_runner import PolicyRunner

        return PolicyRunner(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """Build the update, which turns batches of items into gradients.

        `rng`: randomness of the update. `count_updates`: returns the number of updates of the parameters so far, by
        all learners; None if this learner makes all of them.
        """
        raise NotImplementedError
