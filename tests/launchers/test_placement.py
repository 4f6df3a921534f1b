"""Who runs where: whole nodes for servers, free GPUs beside the trainer, or shared ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchers.placement import Wish, picture, place
from tests.launchers.facts import cluster_of, run_of


def test_servers_take_the_gpus_that_the_trainer_leaves_free():
    placement = place(run_of(parallel={"tensor": 4}), cluster_of(), Wish(teacher_servers=1))
    policy, teacher = placement.pools
    assert placement.trainer_gpus == (0, 1, 2, 3)
    assert policy.gpus == ((4,), (5,), (6,))
    assert teacher.gpus == ((7,),)
    assert list(policy.ports) == [29401, 29402, 29403]
    assert list(teacher.ports) == [29404]
    assert not placement.shares_gpus
    assert placement.nodes == 1


def test_servers_share_the_trainers_gpus_when_it_leaves_none():
    run = run_of(parallel={"tensor": 8}, servers={"tensor_parallel": 2})
    placement = place(run, cluster_of(), Wish())
    assert placement.pools[0].gpus == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert placement.shares_gpus
    assert "SHARE GPUs" in picture(placement)


def test_servers_on_nodes_of_their_own_come_after_the_trainer():
    run = run_of(parallel={"tensor": 8, "data": 2}, servers={"tensor_parallel": 4})
    cluster = cluster_of(bucket_folder="/shared/buckets")
    placement = place(run, cluster, Wish(nodes=2, policy_nodes=3, teacher_nodes=1))
    policy, teacher = placement.pools
    assert (placement.processes_per_node, placement.nodes) == (8, 6)
    assert (policy.first_node, policy.nodes, teacher.first_node) == (2, 3, 5)
    assert policy.gpus == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (list(policy.ports), list(teacher.ports)) == ([29401, 29402], [29403, 29404])
    assert not placement.shares_gpus


def test_a_cpu_machine_gets_one_server_and_a_teachers_one_when_asked():
    cluster = cluster_of(gpus_per_node=0)
    one = place(run_of(parallel={"tensor": 2}), cluster, Wish())
    assert (one.trainer_gpus, one.pools[0].gpus) == ((), ((),))
    two = place(run_of(parallel={"tensor": 2}), cluster, Wish(teacher_servers=1))
    assert [pool.gpus for pool in two.pools] == [((),), ((),)]
    ports = [port for pool in two.pools for port in pool.ports]
    assert len(set(ports)) == 2


def test_the_picture_names_every_rank_and_every_server():
    cluster = cluster_of(gpus_per_node=2, bucket_folder="/shared/buckets")
    text = picture(place(run_of(parallel={"data": 4}), cluster, Wish(nodes=2, policy_nodes=1)))
    assert text.splitlines() == [
        "node 0  +- trainer ranks 0-1 on GPU 0,1",
        "node 1  +- trainer ranks 2-3 on GPU 0,1",
        "node 2  +- policy server :29401 on GPU 0",
        "        |  policy server :29402 on GPU 1",
    ]


@given(
    gpus=st.sampled_from([1, 2, 4, 8]),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 8),
    width=st.sampled_from([1, 2, 4]),
    policy_nodes=st.integers(0, 3),
)
def test_no_gpu_holds_two_servers_and_no_port_is_used_twice(
    gpus, nodes, per_node, width, policy_nodes
):
    run = run_of(parallel={"data": nodes * per_node}, servers={"tensor_parallel": width})
    cluster = cluster_of(gpus_per_node=gpus, bucket_folder="/shared/buckets")
    try:
        placement = place(run, cluster, Wish(nodes=nodes, policy_nodes=policy_nodes))
    except ValueError:
        return
    assert max(placement.trainer_gpus) < gpus
    for pool in placement.pools:
        used = [gpu for server in pool.gpus for gpu in server]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(gpus))
        assert all(len(server) == width for server in pool.gpus)
        assert placement.master_port not in pool.ports


@pytest.mark.parametrize(
    ("parallel", "cluster", "wish", "message"),
    [
        ({"data": 8}, {}, {"nodes": 3}, "--nodes: need a divisor of the 8"),
        ({"data": 16}, {}, {}, "--nodes: need 2 or more for 16"),
        ({}, {}, {"teacher_nodes": 1}, "--teacher-nodes: need --policy-nodes"),
        ({}, {}, {"policy_nodes": 1, "teacher_servers": 1}, "use --teacher-nodes"),
        ({}, {}, {"policy_nodes": 1}, "bucket_folder: need a folder that all nodes share"),
        ({"tensor": 4}, {}, {"teacher_servers": 4}, "--teacher-servers: need fewer than the 4"),
        ({}, {"scheduler": "none"}, {"nodes": 1, "policy_nodes": 1}, "--nodes: need 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_option(parallel, cluster, wish, message):
    with pytest.raises(ValueError, match=message):
        place(run_of(parallel=parallel), cluster_of(**cluster), Wish(**wish))


def test_a_server_wider_than_its_gpus_is_refused():
    run = run_of(parallel={"tensor": 4}, servers={"tensor_parallel": 8})
    with pytest.raises(ValueError, match=r"servers\.tensor_parallel: need a divisor of the 4"):
        place(run, cluster_of(), Wish())


def test_a_method_without_a_teacher_gets_no_teacher_servers():
    run = run_of(method="co_rewarding_i", parallel={"tensor": 4})
    with pytest.raises(ValueError, match="co_rewarding_i samples no teacher"):
        place(run, cluster_of(), Wish(teacher_servers=1))


def test_addresses_in_the_run_are_refused():
    run = run_of(servers={"policy": ["http://127.0.0.1:1"]})
    with pytest.raises(ValueError, match=r"servers\.policy"):
        place(run, cluster_of(), Wish())
