from __future__ import annotations

from functools import partial

import gymnasium
import pytest
from gymnasium.vector import VectorEnv

from polyplay.core.errors import UserError
from polyplay.envs import Discrete, Envs, Greedy
from polyplay.envs.build import autoreset_mode, build_vector, factory_keywords, single_lane
from polyplay.runs.plan import episodes
from tests.envs import faulty, vectors
from tests.envs.vectors import NEXT, OFF, SAME


def test_words_are_those_of_the_signature_that_were_not_given_already():
    assert factory_keywords(vectors.poles) == {"num_envs", "vector_kwargs"}
    assert factory_keywords(partial(gymnasium.make_vec, "CartPole-v1")) == {"num_envs", "vector_kwargs"}
    assert factory_keywords(partial(vectors.poles, num_envs=4)) == {"vector_kwargs"}
    assert factory_keywords(vectors.obedient) == {"num_envs", "autoreset_mode"}
    assert factory_keywords(vectors.Counting) == {"num_envs"}
    assert factory_keywords(faulty.Obedient) == factory_keywords(vectors.three) == factory_keywords(dict) == set()


def test_factories_are_asked_for_lanes_and_for_next_step():
    assert build_vector(vectors.poles, 5).num_envs == 5
    assert autoreset_mode(build_vector(vectors.poles, 2)) is NEXT
    assert autoreset_mode(build_vector(vectors.obedient, 2)) is NEXT
    assert autoreset_mode(build_vector(partial(vectors.poles, vectorization_mode="vector_entry_point"), 2)) is NEXT
    assert build_vector(vectors.three, 5).num_envs == 3
    assert isinstance(build_vector(vectors.misled, 5), faulty.Obedient)
    assert build_vector(vectors.misled, 5).length == 4

    def choosy(num_envs, autoreset_mode=SAME):
        if autoreset_mode is NEXT:
            raise ValueError("not in this mode")
        return vectors.obedient(num_envs, autoreset_mode)

    assert autoreset_mode(build_vector(choosy, 2)) is OFF


def test_modes_are_read_from_words_too():
    env = vectors.Counting()
    for said, meant in (("NextStep", NEXT), (SAME, SAME), ("sometimes", None), (None, None)):
        env.metadata = {"autoreset_mode": said}
        assert autoreset_mode(env) is meant
    assert autoreset_mode(faulty.Obedient()) is None


def test_what_resets_in_the_same_step_becomes_single_environments():
    env = single_lane(vectors.same, "same")
    assert isinstance(env, gymnasium.Env)
    assert not isinstance(env, VectorEnv)
    env.reset(seed=0)
    assert env.step(0)[1] == 2.0, "wrappers stay"
    assert env.spec.max_episode_steps == 9


@pytest.mark.parametrize(
    ("make", "then"),
    [
        (vectors.Batched, "makes the first step of its next episode unseen"),
        (vectors.Listed, "makes the first step of its next episode unseen"),
        (vectors.wrapped, "is reset once more"),
    ],
)
def test_others_that_reset_in_the_same_step_are_taken_as_they_are_and_say_what_is_unseen(make, then):
    env = single_lane(make, "it")
    assert autoreset_mode(env) is SAME
    envs = Envs(make, 2, inline=True)
    says = f"its own, in the same step: a lane that ends while others go on {then}"
    assert envs.spec.describe["resets"] == says
    assert episodes(envs).endswith(f"value of the last observation; resets: {says}")


class Pooled(vectors.Counting):
    __module__ = "envpool.made.up"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (vectors.Silent, r"^it: Silent does not say how it resets; its metadata must say autoreset_mode: "),
        (Pooled, r"^it: is an EnvPool, .* give --env envpool:TASK$"),
    ],
)
def test_others_are_refused_by_name_in_one_line(make, says):
    with pytest.raises(UserError, match=says) as e:
        single_lane(make, "it")
    assert "\n" not in str(e.value)


def test_a_spec_says_that_it_is_of_a_vector():
    for inline in (True, False):  # in this process, and in one of its own
        spec = Envs(vectors.Counting, 6, 2, inline=inline).spec
        assert (spec.vector, spec.width, spec.action) == (True, 0, Discrete(4))
        assert spec.obs.shape == (2,)
        assert spec.describe["resets"] == "by us, lane by lane"
    spec = Envs(vectors.poles, 6, inline=True).spec
    assert spec.describe["resets"] == "its own, in the next step"
    assert spec.describe["time limit"] == "9 steps"
    assert not Envs(vectors.same, 6, inline=True).spec.vector
    assert Envs(vectors.three, 6, 2, inline=True).spec.width == 3


def test_lanes_that_cannot_be_are_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"^three: makes 3 environments, but a group of the pool has lanes=4: give the fun"
    ):
        Envs(vectors.three, 4, inline=True).spec  # noqa: B018
    with pytest.raises(UserError, match=r"^Counting: a vector .* steps all its lanes at once, without Greedy\(n=2\)"):
        Envs(vectors.Counting, 4, batching=Greedy(2), inline=True).spec  # noqa: B018


def test_an_id_of_which_there_are_only_vectors(monkeypatch):
    gymnasium.register("OnlyMany-v0", vector_entry_point=vectors.Counting)
    monkeypatch.setitem(gymnasium.registry, "OnlyMany-v0", gymnasium.registry["OnlyMany-v0"])
    spec = Envs("OnlyMany-v0", 4, inline=True).spec
    assert spec.vector
    assert Envs("OnlyMany-v0", 4, inline=True).open(0).recv()[1]["obs"].shape == (4, 2)
