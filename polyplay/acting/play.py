"""Play without learning: full games of one policy, and matches between two teams or two players of a board game."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from polyplay.acting.actor import MatchEnds, act_rows, player_from_cpu
from polyplay.core import checkpoint, tree
from polyplay.core.files import Row
from polyplay.core.numbers import uniform
from polyplay.core.tree import Batch, Tree
from polyplay.envs import spaces
from polyplay.envs.lane import Bot, seat_bot
from polyplay.envs.pool import Envs, EnvSpec, Pool, lane_seeds
from polyplay.envs.spaces import action_sampler, fields
from polyplay.games import records as kernels
from polyplay.games.board_pool import Opponent
from polyplay.games.boards import Game
from polyplay.nets.policy import Player, Policy

Viewer = Callable[[Batch, Pool], None]  # called with every step's rows and the pool

Choose = Callable[[Batch], Tree]  # rows of a team's lanes → actions for these lanes
TeamPlayer = Callable[[Pool, np.ndarray], Choose]  # begins to play the pool's lanes of these numbers

LANES = 16
SEED = 10_000_019  # added to seeds: evaluation never repeats the seeds of training
CHANCE = 20_000_003  # added to seeds of ε's random numbers, to separate them from the policy's noise


class PlayedGame(NamedTuple):
    """A finished game: undiscounted return (sum of unclipped rewards), length in agent steps, and the game's number."""

    ret: float
    length: int
    number: int  # the g-th game of lane l of L: g · L + l


# (games that ended in a step of all lanes, number of lanes) → whether to continue
Watch = Callable[[list[PlayedGame], int], bool]


@dataclass(frozen=True)
class PlayOptions:
    """How to play games.

    `episodes`: number of games.
    `seed`: seed of the environments and of the random numbers of actions.
    `greedy`: whether the policy takes its most probable action instead of a sampled one.
    `epsilon`: probability that a uniform random action replaces an action of the policy.
    """

    episodes: int
    seed: int = 0
    greedy: bool = False
    epsilon: float = 0.0


def play_games(
    envs: Envs, policy: Player, how: PlayOptions, viewers: Sequence[Viewer] = (), watch: Watch | None = None
) -> list[tuple[float, int]]:
    """Play full games. Return the pair (return, length) of each game, in the order of the games' numbers. Every lane
    plays a fixed number of games, because short games would otherwise be overrepresented. If `watch` returns False
    after a step, play ends, and only the finished games are returned.
    """
    games, lanes = list[PlayedGame](), lanes_of(envs, how.episodes)
    with closing(play_steps(envs, policy, how, viewers)) as steps:
        for found in steps:
            games += found
            if watch is not None and not watch(found, lanes):
                break
    return [(g.ret, g.length) for g in sorted(games, key=lambda g: g.number)]


def lanes_of(envs: Envs, episodes: int) -> int:
    """Return the number of lanes (parallel environments) for `episodes` games. All tasks get equally many lanes."""
    few = min(episodes, LANES)
    if order := envs.spec.order if envs.only < 0 else ():
        return max(few // len(order), 1) * len(order)
    return envs.spec.width or max(few // envs.spec.seats, 1) * envs.spec.seats


def play_steps(
    envs: Envs, policy: Player, how: PlayOptions, viewers: Sequence[Viewer] = ()
) -> Generator[list[PlayedGame], None, None]:
    """Play full games. After every step of all lanes, yield the games that ended in this step. Every lane (parallel
    environment) plays a fixed number of games, and further games are left out.
    """
    lanes = lanes_of(envs, how.episodes)
    if envs.options.get("starts"):  # a restarted game would take another game's start state
        envs = replace(envs, options={**envs.options, "stride": lanes}, max_restarts=0)
    quota = how.episodes // lanes + (np.arange(lanes) < how.episodes % lanes)
    quota = np.maximum(quota, bool(envs.spec.tasks))  # each task is played at least once
    ret, length, done = np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    ends, everyone = MatchEnds(np.arange(lanes).reshape(-1, envs.spec.seats)), np.arange(lanes)
    with closing(play_rows(envs, lanes, how.seed + SEED, [(policy_player(policy, how), slice(None))])) as rows:
        for step, _, pool in rows:
            for viewer in viewers:
                viewer(step, pool)
            for matches in ends.watch(everyone, step):
                # a player who never joined a match has no game in it
                done[ends.lanes[matches][~ends.came[ends.lanes[matches]]]] += 1
                ends.forget(matches)
            ret += step["reward"]
            length += ~step["first"]
            games = []
            for i in np.flatnonzero(step["over"]):
                if done[i] < quota[i]:
                    games.append(PlayedGame(float(ret[i]), int(length[i]), int(done[i] * lanes + i)))
                done[i] += 1
                ret[i], length[i] = 0.0, 0
            yield games
            if (done >= quota).all():
                return


def play_rows(
    envs: Envs, lanes: int, seed: int, players: Sequence[tuple[TeamPlayer, np.ndarray | slice]], first: int = 0
) -> Generator[tuple[Batch, Tree, Pool], None, None]:
    """Play full games, in which all lanes (parallel environments) step together. In every step, yield the rows of all
    lanes, the chosen actions, and the pool of environments. The next step overwrites the array of actions.

    `players`: pairs of a player and the indices of its lanes.
    `first`: number of the first lane, on which the environments' seeds depend.
    """
    shown = replace(envs, lanes=lanes, workers=0, at_once=0, groups=1, active=0, agents=1)
    if envs.spec.tasks:  # the spec of tasks takes long to compute
        shown = envs.share(lanes=lanes, workers=0, groups=1)
    with closing(shown.open(seed, first)) as pool:
        seated = [(begin(pool, first + np.arange(lanes)[own]), own) for begin, own in players]
        action = tree.zeros(fields(pool.spec.action), (lanes,))
        while True:
            which, step = pool.recv()
            for choose, own in seated:
                tree.write(action, own, choose(tree.at(step, own)))
            yield step, action, pool
            pool.send(which, action)


def choose_with_value(
    spec: EnvSpec, policy: Player, how: PlayOptions, numbers: np.ndarray, step: Batch, state: Batch, act: int
) -> tuple[Tree, np.ndarray | None, Batch]:
    """Choose actions for the lanes with these `numbers`. Return the actions, the network's values [B] or None, and the
    policy's state after this step. `act`: number of actions that each of these lanes has taken before.
    """
    acts = np.full(len(numbers), act)
    noise = None if how.greedy else uniform(how.seed + SEED, numbers, acts, policy.noise)
    out, after = act_rows(policy, step, state, noise)
    action, value = out["action"], out.get("value")
    if how.epsilon:
        action = some_random(spec, how, numbers, step, action, acts)
        if "action" in after:  # a core with the previous action as input
            after["action"] = tree.map(torch.from_numpy, action)
    return action, value, after


def some_random(
    spec: EnvSpec, how: PlayOptions, numbers: np.ndarray, step: Batch, action: Tree, acts: np.ndarray
) -> Tree:
    """Replace each action by a random one with probability `how.epsilon`."""
    luck = uniform(how.seed + CHANCE, numbers, acts, 1 + spaces.action_width(spec.action))
    other = spaces.random_actions(spec.action, luck[:, 1:], step.get("mask"))
    return spaces.mix_random(action, other, luck[:, 0] < how.epsilon)


def load_policy(system: Any, path: Path, agent: int = 0) -> Policy:
    """Load a policy with its weights. `path`: a checkpoint, or a file with the weights of only one agent."""
    policy, alone = system.policy(), path.suffix == checkpoint.ARRAYS
    saved = (
        checkpoint.read_self(path) if alone else checkpoint.open_checkpoint(path).arrays(checkpoint.policy_name(agent))
    )
    checkpoint.load_into(policy, saved)
    return policy


def load_player(system: Any, path: Path, device: str = "cpu", simulations: int | None = None, agent: int = 0) -> Player:
    """Load a trained player from a checkpoint. The player is the network or, in systems with tree search, a search that
    uses the network. `simulations`: number of simulations per move of the search. None: the search's default.
    """
    policy = load_policy(system, path, agent).to(device)
    if system.player is None:
        return player_from_cpu(policy, device)
    search: Any = system.player(policy)
    if simulations is not None:
        search.simulate(simulations)
    return search


def summarize_games(games: list[tuple[float, int]], frames_per_step: int) -> Row:
    returns, lengths = np.array([g[0] for g in games]), np.array([g[1] for g in games])
    return {
        "episodes": len(games),
        **{f"episodic_return_{of}": float(getattr(np, of)(returns)) for of in ("mean", "std", "min", "max", "median")},
        "episodic_length_mean": float(lengths.mean()),
        "frames": int(lengths.sum()) * frames_per_step,
        "returns": [float(r) for r in returns],
    }


def policy_player(policy: Player, how: PlayOptions) -> TeamPlayer:
    """Return a player that acts by a policy. The player keeps the policy's recurrent state for each lane."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        state, acts = policy.initial(len(lanes)), itertools.count()

        def choose(step: Batch) -> Tree:
            nonlocal state
            action, _, state = choose_with_value(pool.spec, policy, how, lanes, step, state, next(acts))
            return action

        return choose

    return begin


def random_player(seed: int) -> TeamPlayer:
    """Return a player that chooses uniformly among the legal actions."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        draw = action_sampler(pool.spec.action, int(lane_seeds(seed + SEED, int(lanes[0]), 1)[0]))
        return lambda step: draw(len(lanes), step.get("mask"))

    return begin


def scripted_player(bot: Bot) -> TeamPlayer:
    """Return a player that acts by a bot. If the bot cannot play these lanes, UserError is raised when play begins."""

    def begin(pool: Pool, lanes: np.ndarray) -> Choose:
        seated = seat_bot(bot, pool, lanes)
        return lambda step: seated(step["obs"], step.get("mask"))

    return begin


def play_both_sides(envs: Envs, player: TeamPlayer, other: TeamPlayer, matches: int, seed: int) -> np.ndarray:
    """Play matches of two players. Return the points of `player` in each match, float64 [matches]: 1 for a win, ½ for a
    draw, 0 for a loss. In half of the matches, `player` is the first team. In the other half, it is the second team.
    Both halves use the same seeds.
    """
    steps = both_side_steps(envs, player, other, matches, seed)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return np.asarray(end.value)


def both_side_steps(
    envs: Envs, player: TeamPlayer, other: TeamPlayer, matches: int, seed: int
) -> Generator[None, None, np.ndarray]:
    """Do the same as `play_both_sides`, but as a generator, which yields after every step of all matches."""
    first = yield from team_steps(envs, (player, other), matches // 2, seed)
    second = yield from team_steps(envs, (other, player), matches // 2, seed)
    return np.concatenate([first, 1 - second])


def team_steps(
    envs: Envs, players: tuple[TeamPlayer, TeamPlayer], matches: int, seed: int
) -> Generator[None, None, np.ndarray]:
    """Play matches. Return the first team's points in each match, float64 [matches]: 1 for a win, ½ for a draw, 0 for a
    loss. Yield after every step of all matches.

    The team with the higher score wins. A score is the sum of the team's rewards. If the environment reports no team
    rewards, it is the sum of the returns of the team's players.
    """
    at_once, team = min(matches, LANES), np.array(envs.spec.sides)
    points, scores = np.full(matches, np.nan), np.zeros((at_once, 2))
    sides = [np.flatnonzero(np.tile(team, at_once) == t) for t in (0, 1)]
    # match m has the lanes m·seats, m·seats + 1, …, in the order of the seats
    done, everyone = np.zeros(at_once, np.int64), np.arange(at_once * len(team))
    ends = MatchEnds(everyone.reshape(at_once, len(team)))
    with closing(play_rows(envs, len(everyone), seed + SEED, list(zip(players, sides, strict=True)))) as rows:
        for step, _, _ in rows:
            whole, broken = ends.watch(everyone, step)
            for i in whole:
                if (number := done[i] * at_once + i) < matches:
                    points[number] = (1 + np.sign(scores[i, 0] - scores[i, 1])) / 2
                done[i] += 1
            for some in (whole, broken):
                ends.forget(some)
                scores[some] = 0.0
            if not np.isnan(points).any():
                break
            scores += _team_scores(step, team)
            yield
    return points


def _team_scores(step: Batch, team: np.ndarray) -> np.ndarray:
    """Return the numbers that a row adds to the scores of both teams, float64 [matches, 2]."""
    board, own = (-1, len(team)), (team[:, None] == (0, 1)).astype(np.float64)  # own: [seats, teams]
    if "team_reward" not in step:
        return step["reward"].reshape(board) @ own
    there = ~step["first"].reshape(board)  # all present players of a team have the same team reward: take the mean
    return np.where(there, step["team_reward"].reshape(board), 0.0) @ own / np.maximum(there @ own, 1)


GIVES_UP = -1  # returned instead of a move: the player gives up and loses this game
MatchWatch = Callable[[dict[int, float], int], bool]  # ({ended game: points}, number of moves) → whether to continue


@dataclass(frozen=True)
class MatchStarts:
    """Start positions of n games. `begins`: whether `player` (not `other`) moves first in each game, bool [n]."""

    records: np.ndarray  # int8 [n, record]
    begins: np.ndarray


def match(
    board: Game,
    player: Opponent,
    other: Opponent,
    starts: MatchStarts,
    seed: int = 0,
    watch: MatchWatch = lambda found, moves: True,
    at_once: int | None = None,
    over: Callable[[np.ndarray, np.ndarray], None] = lambda records, at: None,
) -> np.ndarray:
    """Play board games of two players. Return the points of `player` in each game, float64 [n]: 1 for a win, ½ for a
    draw, 0 for a loss. If `watch` ends play early, unfinished games have NaN points. Raises ValueError if a move is
    illegal.
    `at_once`: number of games to play at the same time. None: all games.
    `over`: function that is called with all positions and with the numbers of the games that just ended.
    """
    records, own, n = starts.records.copy(), starts.begins.copy(), len(starts.records)
    random = np.random.default_rng(seed).integers(2**63, size=n, dtype=np.uint64)
    points = np.full(n, np.nan)
    while len(on := np.flatnonzero(np.isnan(points))[:at_once]):
        ended = dict[int, float]()
        for at, who, side, won in ((on[own[on]], player, "player", 1.0), (on[~own[on]], other, "other player", 0.0)):
            if len(at):
                results = _play(board, records, at, who(records, random, at), side)
                points[at[results == kernels.WON]] = won
                points[at[results == kernels.LOST]] = 1.0 - won
                points[at[results == kernels.DRAWN]] = 0.5
                finished = at[results != kernels.GOES_ON]
                ended |= {i: float(points[i]) for i in finished.tolist()}
                over(records, finished)
        own[on] = ~own[on]
        if not watch(ended, len(on)):
            break
    return points


def _play(board: Game, records: np.ndarray, at: np.ndarray, actions: np.ndarray, side: str) -> np.ndarray:
    results, moves = np.full(len(at), kernels.LOST, np.int8), actions != GIVES_UP
    made, chosen = at[moves], actions[moves]
    for game, action in zip(made.tolist(), chosen.tolist(), strict=True):
        if action not in board.legal(records[game]):
            given = f"the {side} made the illegal move {action} in game {game}"
            raise ValueError(f"game:{board.name}: {given}: {board.line(records[game])}")
    results[moves] = board.play_all(records, made, chosen)
    return results


def draw_openings(
    board: Game, n: int, plies: int, draw: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw n opening positions. Return the positions, int8 [n, record], and the moves that lead to them, int64 [n,
    plies]. An opening stops before a move that would end the game. Moves that were not made are -1.
    `draw`: function that returns a move for each of the given positions, int8 [n, record].
    """
    records, on = np.stack([board.new() for _ in range(n)]), np.arange(n)
    moves = np.full((n, plies), -1)
    for ply in range(plies):
        if len(on):
            before = records[on].copy()
            drawn = draw(before)
            over = board.play_all(records, on, drawn) != kernels.GOES_ON
            records[on[over]] = before[over]
            on, drawn = on[~over], drawn[~over]
            moves[on, ply] = drawn
    return records, moves
