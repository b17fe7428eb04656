"""The Ray runtime: the same processes, placed on the nodes of a cluster. Nothing outside this package imports ray.

Ray places processes, tells when one is lost, and carries calls between nodes. Two processes on one node talk over a
direct line instead (runtime/direct.py): a Ray call costs about a millisecond of CPU on each side, a direct one 20 us.

    driver   RaySupervisor --asks, watches--> RayHost (a Ray actor) on some node, one per process of the program
    edges    RayHost --direct line--> RayHost on the same node;  RayHost --Ray call--> RayHost elsewhere
"""

from thespis.runtime.ray.driver import RaySupervisor

__all__ = ["RaySupervisor"]
