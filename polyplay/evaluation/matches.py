"""Who plays in a tournament, and how two of them meet: at a board game, or on an environment with two teams."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from polyplay.acting.play import PlayOptions, load_player
from polyplay.acting.team_match import (
    TeamPlayer,
    play_both_sides,
    policy_player,
    random_player,
    scripted_player,
)
from polyplay.common.errors import UserError
from polyplay.common.files import Row
from polyplay.envs import Envs
from polyplay.envs.atari.protocols import is_board
from polyplay.envs.boards.opponents import Opponent
from polyplay.envs.boards.pool import board_of
from polyplay.envs.bots import load_bot
from polyplay.evaluation.boards import PLIES, both_colors
from polyplay.evaluation.players import MORE, BoardPlayer, PlayerOptions, named_player, play_match, player_of_agent
from polyplay.evaluation.run_agents import RunAgent, find_agents, is_run
from polyplay.evaluation.tournament import TournamentOptions
from polyplay.nets import device


@dataclass(frozen=True)
class Entrant:
    """agent: None, where it is an opponent by name."""

    name: str
    agent: RunAgent | None = None


@dataclass(frozen=True)
class RoundRobin:
    """play: all matches of two entrants by their places; the points of the first. about: what a record says of each
    entrant. opening_plies, players: of a board game.
    """

    game: str
    about: list[Row]
    play: Callable[[int, int], float]
    opening_plies: int | None = None
    players: Sequence[Opponent] = ()


def find_entrants(names: Sequence[str], options: TournamentOptions) -> list[Entrant]:
    """Every agent that the names mean, and the anchor. Raises UserError: fewer than two, one of them twice, or no run,
    which would say what is played.
    """
    given = [*names, *([options.anchor] if options.anchor and options.anchor not in names else [])]
    found = list(chain.from_iterable(_entrants(name, options.trust) for name in given))
    everyone = [entrant.name for entrant in found]
    if len(everyone) < 2:
        raise UserError("tournament takes two players at least: polyplay tournament RUN RUN …, or RUN random")
    if twice := sorted({name for name in everyone if everyone.count(name) > 1}):
        raise UserError(f"tournament: {', '.join(twice)} given twice: name each player once")
    if options.anchor not in (None, *everyone):
        raise UserError(f"--anchor {options.anchor} given, allowed: one of {', '.join(everyone)}")
    if not any(entrant.agent for entrant in found):
        given_names = ", ".join(everyone)
        raise UserError(
            f"tournament: {given_names} given, and none is the directory of a run, which says what is played"
        )
    return found


def _entrants(name: str, trust: bool) -> list[Entrant]:
    return [Entrant(agent.name, agent) for agent in find_agents(name, trust)] if is_run(name) else [Entrant(name)]


def open_matches(entrants: Sequence[Entrant], options: TournamentOptions) -> RoundRobin:
    """Raises UserError: runs of several games, of one that has no two teams, or no player of that name there."""
    agents = [entrant.agent for entrant in entrants if entrant.agent]
    first = agents[0].wired.envs
    board, where = is_board(first), device.choose_devices(options.device)[0]
    if options.env is not None:
        return _team_matches(entrants, _asked_envs(agents, options.env), options, where)
    for agent in agents:
        envs = agent.wired.envs
        same = np.array_equal(board_of(envs).numbers, board_of(first).numbers) if board and is_board(envs) else False
        if not same and _game(envs) != _game(first):
            raise UserError(
                f"tournament: {agent.name} plays {_game(envs)}, and {agents[0].name} {_game(first)}: "
                "name runs of one game"
            )
    return (_board_matches if board else _team_matches)(entrants, first, options, where)


def _asked_envs(agents: Sequence[RunAgent], title: str) -> Envs:
    """Raises UserError: --env is not for these agents."""
    envs = replace(agents[0].wired.envs, name=title, options={})
    for agent in agents:
        own = agent.wired.envs
        if is_board(own) or is_board(envs):
            raise UserError(f"--env {title} given, but board games are as they are: leave it out")
        if (own.spec.obs, own.spec.action) != (envs.spec.obs, envs.spec.action):
            text = f"--env {title} given, but {agent.name} plays {own.title}"
            raise UserError(f"{text}: name an environment with the same observations and actions")
    return envs


def _game(envs: Envs) -> str:
    """The name with its options."""
    return f"{envs.title} {json.dumps(dict(envs.options), default=str)}" if envs.options else envs.title


# ------------------------------------------------------------------------------------------ board games


def _board_matches(entrants: Sequence[Entrant], envs: Envs, options: TournamentOptions, where: str) -> RoundRobin:
    board, plies = board_of(envs), PLIES if options.opening_plies is None else options.opening_plies

    def player(i: int, entrant: Entrant) -> BoardPlayer:
        how = PlayerOptions(options.simulations, options.seed + i, options.greedy, 0.0, where)
        if entrant.agent:
            return player_of_agent(entrant.agent, how)
        return named_player(entrant.name, board, "tournament: ")

    players = [player(i, entrant) for i, entrant in enumerate(entrants)]

    def play(i: int, j: int) -> float:
        starts = both_colors(board, options.matches, plies, options.seed)
        return float(play_match(players[i], players[j], starts, options.seed).sum())

    about, moves = [player.about for player in players], [player.moves for player in players]
    return RoundRobin(f"game:{board.name}", about, play, plies, moves)


# ------------------------------------------------------------------------------------------- two teams


def _team_matches(entrants: Sequence[Entrant], envs: Envs, options: TournamentOptions, where: str) -> RoundRobin:
    _check_teams(envs, options, next(entrant.name for entrant in entrants if entrant.agent))
    players = [_team_player(entrant, options.seed + i, envs, options, where) for i, entrant in enumerate(entrants)]
    about = [entrant.agent.about if entrant.agent else {} for entrant in entrants]
    return RoundRobin(
        envs.title,
        about,
        lambda i, j: float(play_both_sides(envs, players[i], players[j], options.matches, options.seed).sum()),
    )


def _check_teams(envs: Envs, options: TournamentOptions, name: str) -> None:
    """Raises UserError: it isn't played by two teams of the same kind, or options for board games."""
    spec, given = envs.spec, {"--simulations": options.simulations, "--opening-plies": options.opening_plies}
    if wrong := [flag for flag, value in given.items() if value is not None]:
        raise UserError(f"{wrong[0]} is for board games (game:NAME), {name} plays {envs.title}: leave it out")
    teams, needs = len(set(spec.sides)), "a tournament needs two teams of seats, or a board game (game:NAME)"
    if spec.seats < 2:
        raise UserError(f"{name} plays {envs.title}, which has one player: {needs}")
    if teams != 2:
        raise UserError(
            f"{name} plays {envs.title}, whose {spec.seats} seats are of {teams} team{'s' * (teams > 1)}: {needs}"
        )
    if len(set(spec.kinds)) > 1:
        raise UserError(f"{name} plays {envs.title}, whose seats have different spaces: no policy plays both sides")


def _team_player(entrant: Entrant, seed: int, envs: Envs, options: TournamentOptions, where: str) -> TeamPlayer:
    if entrant.agent:
        found = entrant.agent
        policy = load_player(found.wired, found.weights, where, agent=found.agent)
        return policy_player(policy, PlayOptions(options.matches, seed, options.greedy))
    if entrant.name == "random":
        return random_player(seed)
    bots = {f"bot:{name}": name for name in envs.spec.bots}
    if entrant.name in bots:
        return scripted_player(load_bot(envs.spec, bots[entrant.name]))
    raise UserError(f"tournament: {entrant.name} given, allowed for {envs.title}: {', '.join(['random', *bots])}{MORE}")
