"""Train on an environment of your own: its class, or any function that makes one."""

import gymnasium as gym
import numpy as np

from thespis import train


class Catch(gym.Env):  # a fruit falls; move the basket under it
    observation_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fruit, self.basket, self.height = self.np_random.integers(0, 10), 5, 10
        return np.array([self.fruit, self.basket, self.height], np.float32) / 10, {}

    def step(self, action):
        self.basket, self.height = int(np.clip(self.basket + action - 1, 0, 9)), self.height - 1
        landed = self.height == 0
        reward = float(landed) * (1.0 if self.fruit == self.basket else -1.0)
        return np.array([self.fruit, self.basket, self.height], np.float32) / 10, reward, landed, False, {}


if __name__ == "__main__":
    run = train("impala", env=Catch, stop_at_return=0.95)
    print("a fruit on the right, action", run.policy.act(np.array([0.9, 0.5, 1.0], np.float32)))
