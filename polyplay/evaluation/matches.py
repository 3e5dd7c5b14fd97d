"""Play matches between runs, built-in opponents and Go programs, in board games or in games of two teams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np

from polyplay.acting import play
from polyplay.core.errors import UserError
from polyplay.core.files import Row
from polyplay.envs import atari
from polyplay.envs.lane import load_bot
from polyplay.envs.pool import Envs, EnvSpec
from polyplay.evaluation.agent import RunAgent, find_agent, is_run
from polyplay.evaluation.gtp import PREFIX, GtpPlayer, programs_running
from polyplay.evaluation.tournament import Entrant, TournamentOptions
from polyplay.games import board_rules, records
from polyplay.games.board_pool import Opponent, board_of, opponent
from polyplay.games.boards import Game, Go
from polyplay.nets import device
from polyplay.nets.policy import Player
from polyplay.systems import System

if TYPE_CHECKING:
    from polyplay.evaluation.evaluate import EvaluateOptions

MORE = ", or the directory of a run"  # for error messages: allowed besides opponents by name


@dataclass(frozen=True)
class BoardPlayer:
    """Player of a board game. name: as the user gave it. about: entries about the player in the record of a match."""

    name: str
    board: Game
    moves: Opponent
    about: Row


def policy_moves(board: Game, spec: EnvSpec, policy: Player, how: play.PlayOptions) -> Opponent:
    """Return a policy without recurrent state as an Opponent, which can move in any position of the game."""
    from polyplay.search.search import SearchPolicy

    acts = count()

    def choose(records: np.ndarray, random: np.ndarray, at: np.ndarray) -> np.ndarray:
        n, found, act = len(at), records[at], next(acts)
        off, reward = np.zeros(n, bool), np.zeros(n, np.float32)
        step = {"obs": np.zeros((n, *board.planes), np.float32), "reward": reward, "first": off}
        step["mask"] = np.zeros((n, board.actions), bool)
        board_rules.show_all(board.numbers, found, np.arange(n), found[:, 0], step["obs"], step["mask"], off)
        if isinstance(policy, SearchPolicy):
            action, _ = policy.choose(found)  # records: Go's superko rule needs more than the planes show
            return play.some_random(spec, how, at, step, action, np.full(n, act)) if how.epsilon else action
        action, _, _ = play.choose_with_value(spec, policy, how, at, step, {}, act)
        return np.asarray(action, np.int64)

    return choose


def player_of(wired: System, policy: Player, about: Row, how: play.PlayOptions, name: str = "") -> BoardPlayer:
    """Return a checkpoint's policy as a player of matches. Raises UserError if the policy has a recurrent state."""
    board, envs = board_of(wired.envs), wired.envs
    if policy.state_spec():
        raise UserError(f"matches need a policy without recurrent state, but that of {envs.title} has one")
    return BoardPlayer(name, board, policy_moves(board, envs.spec, policy, how), about)


def player_of_agent(
    found: RunAgent, how: play.PlayOptions, simulations: int | None = None, where: str = "cpu"
) -> BoardPlayer:
    """Return an agent as a player of matches. Raises UserError if the agent does not play a board game.

    simulations: number of simulations of the search per move (None: the run's own number).
    """
    if not atari.is_board(found.wired.envs):
        raise UserError(f"{found.name} plays {found.wired.envs.title}, but matches need board games (game:NAME)")
    policy = play.load_player(found.wired, found.weights, where, simulations, found.agent)
    return player_of(found.wired, policy, found.about, how, found.name)


def named_player(name: str, board: Game, option: str) -> BoardPlayer:
    """Return the opponent called `name`, which may be a Go program. Raises UserError if there is no such opponent."""
    if name.startswith(PREFIX):
        return BoardPlayer(name, board, GtpPlayer(name, board, option), {})
    more = f", gtp:COMMAND{MORE}" if isinstance(board, Go) else MORE
    return BoardPlayer(name, board, opponent(name, board, option, more), {})


def play_match(
    player: BoardPlayer,
    other: BoardPlayer,
    starts: play.MatchStarts,
    seed: int,
    watch: play.MatchWatch = lambda found, moves: True,
) -> np.ndarray:
    """Play a match (see play.match). A Go program has one board, so its games are played one after the other."""
    programs = list[GtpPlayer]()
    for one, against in ((player, other), (other, player)):
        if isinstance(one.moves, GtpPlayer):
            one.moves.against = against.name
            programs.append(one.moves)

    def over(records: np.ndarray, at: np.ndarray) -> None:
        for program in programs:
            program.over(records, at)

    return play.match(player.board, player.moves, other.moves, starts, seed, watch, 1 if programs else None, over)


# The protocol of board games, `versus`: play a run against an opponent, and record the score.


PLIES = 2  # default number of random moves of an opening
TRIES = 10_000  # most random games to try until a game lasts long enough for an opening
OUTCOMES = {"wins": 1.0, "draws": 0.5, "losses": 0.0}


def play_versus(
    wired: System, policy: Player, name: str, options: EvaluateOptions, device: str, games: int, step: play.Watch
) -> Row:
    """Play a run against an opponent. Return the entries of a record. Raises UserError.

    `step`: called after each move in all games, with the games that have ended and the number of moves made.
    """
    how = play.PlayOptions(games, options.seed, options.greedy, options.epsilon or 0.0)
    player, against = player_of(wired, policy, {}, how, name), str(options.against)
    plies = PLIES if options.opening_plies is None else options.opening_plies
    if is_run(against):
        found, second = find_agent(against, options.trust), replace(how, seed=how.seed + 1, epsilon=0.0)
        other = player_of_agent(found, second, options.simulations, device)
        if not np.array_equal(other.board.numbers, player.board.numbers):
            why = f"it plays game:{other.board.name}; give a run of game:{player.board.name}"
            raise UserError(f"--against {against}: {why}")
    else:
        other = named_player(against, player.board, "--against ")
    starts = both_colors(player.board, games, plies, how.seed)

    def ended(found: Mapping[int, float], moves: int) -> bool:
        return step([play.PlayedGame(points, 0, number) for number, points in found.items()], moves)

    with programs_running([other.moves]) as programs:
        points = play_match(player, other, starts, how.seed, ended)
    played = points[~np.isnan(points)]
    return {
        **{"against": against, "opening_plies": plies, "points": float(played.sum())},
        **{what: int((played == worth).sum()) for what, worth in OUTCOMES.items()},
        **{f"against_{key}": value for key, value in other.about.items()},
        **({"programs": [program.about for program in programs]} if programs else {}),
        **{"episodes": len(played), "returns": played.tolist()},
        **({"episodic_return_mean": float(played.mean())} if len(played) else {}),
        **({"episodic_return_std": float(played.std())} if len(played) else {}),
    }


def openings(board: Game, plies: int, seed: int) -> Iterator[np.ndarray]:
    """Yield records of games after `plies` random legal moves, without end. Games that end earlier are left out."""
    rng = np.random.default_rng(seed)
    while True:
        for _ in range(TRIES):
            record, result = board.new(), records.GOES_ON
            for _ in range(plies):
                result = board.play(record, int(rng.choice(board.legal(record))))
                if result != records.GOES_ON:
                    break
            else:
                yield record
                break
        else:
            text = f"every random game of game:{board.name} has ended by then: lower it"
            raise UserError(f"--opening-plies {plies}: {text}")


def both_colors(board: Game, games: int, plies: int, seed: int) -> play.MatchStarts:
    """Return each opening twice. The player moves next in the first half of the games, the other in the second half."""
    records = np.stack([*islice(openings(board, plies, seed), games // 2)])
    return play.MatchStarts(np.concatenate([records, records]), np.arange(2 * len(records)) < len(records))


@dataclass(frozen=True)
class RoundRobin:
    """Matches of a tournament in which all players meet.

    `play(i, j)`: plays all matches of players i and j, and returns the points of player i.
    `about`: entries about each player in the record.
    `opening_plies`, `players`: for board games only.
    """

    game: str
    about: list[Row]
    play: Callable[[int, int], float]
    opening_plies: int | None = None
    players: Sequence[Opponent] = ()


def open_matches(entrants: Sequence[Entrant], options: TournamentOptions) -> RoundRobin:
    """Prepare the matches of a tournament. Raises UserError if the runs are of several games, if a game does not have
    two teams, or if a player is unknown.
    """
    agents = [agent for _, agent in entrants if agent]
    first, where = agents[0], device.choose_devices(options.device)[0]
    asked, envs = options.env is not None, first.wired.envs
    if asked:
        envs = replace(envs, name=options.env, options={})
    for agent in agents:
        own = agent.wired.envs
        boards = atari.is_board(own), atari.is_board(envs)
        if asked and any(boards):
            raise UserError(f"--env {options.env} does not apply to board games: leave it out")
        if asked and (own.spec.obs, own.spec.action) != (envs.spec.obs, envs.spec.action):
            text = f"--env {options.env} given, but {agent.name} plays {own.title}"
            raise UserError(f"{text}: name an environment with the same observations and actions")
        same = all(boards) and np.array_equal(board_of(own).numbers, board_of(envs).numbers)
        if not asked and not same and _game(own) != _game(envs):
            text = f"tournament: {agent.name} plays {_game(own)}, and {first.name} {_game(envs)}"
            raise UserError(f"{text}: name runs of one game")
    return (_board_matches if atari.is_board(envs) else _team_matches)(entrants, envs, options, where)


def _game(envs: Envs) -> str:
    """Return the name of a game together with its options."""
    return f"{envs.title} {json.dumps(dict(envs.options), default=str)}" if envs.options else envs.title


def _board_matches(entrants: Sequence[Entrant], envs: Envs, options: TournamentOptions, where: str) -> RoundRobin:
    board, plies, players = board_of(envs), PLIES if options.opening_plies is None else options.opening_plies, []
    for i, (name, agent) in enumerate(entrants):
        how = play.PlayOptions(options.matches, options.seed + i, options.greedy)
        own = player_of_agent(agent, how, options.simulations, where) if agent else None
        players.append(own or named_player(name, board, "tournament: "))

    def points(i: int, j: int) -> float:
        starts = both_colors(board, options.matches, plies, options.seed)
        return float(play_match(players[i], players[j], starts, options.seed).sum())

    about, moves = [player.about for player in players], [player.moves for player in players]
    return RoundRobin(f"game:{board.name}", about, points, plies, moves)


def _team_matches(entrants: Sequence[Entrant], envs: Envs, options: TournamentOptions, where: str) -> RoundRobin:
    """Prepare matches of two teams. Raises UserError for other games, or for options of board games."""
    name, spec = next(name for name, agent in entrants if agent), envs.spec
    given = {"--simulations": options.simulations, "--opening-plies": options.opening_plies}
    if wrong := [flag for flag, value in given.items() if value is not None]:
        raise UserError(f"{wrong[0]} is for board games (game:NAME), {name} plays {envs.title}: leave it out")
    teams = len(set(spec.sides))
    if teams != 2 or len(set(spec.kinds)) > 1:
        seats = f"{spec.seats} seat{'s' * (spec.seats > 1)} of {teams} team{'s' * (teams > 1)}"
        needs = "a tournament needs two teams of seats that have the same spaces, or a board game (game:NAME)"
        raise UserError(f"{name} plays {envs.title}, which has {seats}: {needs}")
    players, bots = list[play.TeamPlayer](), {f"bot:{name}": name for name in spec.bots}
    for seed, (name, agent) in enumerate(entrants, options.seed):
        if agent:
            policy = play.load_player(agent.wired, agent.weights, where, agent=agent.agent)
            players.append(play.policy_player(policy, play.PlayOptions(options.matches, seed, options.greedy)))
        elif name == "random":
            players.append(play.random_player(seed))
        elif name in bots:
            players.append(play.scripted_player(load_bot(spec, bots[name])))
        else:
            allowed = ", ".join(["random", *bots])
            raise UserError(f"tournament: {name} given, allowed for {envs.title}: {allowed}{MORE}")

    def points(i: int, j: int) -> float:
        return float(play.play_both_sides(envs, players[i], players[j], options.matches, options.seed).sum())

    return RoundRobin(envs.title, [agent.about if agent else {} for _, agent in entrants], points)
