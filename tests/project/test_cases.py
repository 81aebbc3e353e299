"""Reports on comparable software, as cases: which test holds each of them."""

import re

import pytest

from fedlib.support.paths import ROOT

# A01 to A20 and C01 to C15 of the users' cases -> file and test
CASES = {
    "A01": "partitions/test_schemes.py test_what_no_draw_gives_is_refused_within_five",
    "A02": "methods/test_contracts.py test_small_and_empty_clients",
    "A03": "papers/test_protocols.py test_a_last_batch_of_one_image_does_not_stop_a",
    "A04": "methods/test_contracts.py test_small_and_empty_clients",
    "A05": "methods/test_oracles.py A05",
    "A06": "methods/test_oracles.py A06",
    "A07": "runs/test_runner.py test_a_killed_run_goes_on_with_the_same_bits",
    "A08": "methods/test_oracles.py A08",
    "A09": "methods/test_gfpl.py test_no_more_components_than_samples",
    "A10": "baselines/test_generative.py test_ccvr_pooled_statistics_are_those_of_all",
    "A11": "partitions/test_partition.py A11",
    "A12": "runs/test_determinism.py test_a_run_has_the_same_bits_in_a_fresh_process",
    "A13": "methods/test_contracts.py A13",
    "A14": "methods/test_contracts.py test_reduction_and_knob",
    "A15": "methods/test_contracts.py A15",
    "A16": "data/test_fetch.py test_fetch_takes_the_next_mirror_when_one_is_down",
    "A17": "data/test_data.py test_odd_labels_are_mapped_in_sorted_order",
    "A18": "rebuild/test_parameters.py A18",
    "A19": "rebuild/test_parameters.py A19",
    "A20": "rebuild/test_nbval.py A20",
    "C01": "support/test_sources.py test_a_file_that_was_edited_after_its_import_is",
    "C02": "support/test_sources.py test_a_helper_behind_every_form_of_import",
    "C03": "data/test_store.py test_decoded_data_that_are_not_what_was_written_are",
    "C04": "papers/test_study.py C04",
    "C05": "data/test_image_sets.py test_an_empty_folder_of_a_class_does_not_shift",
    "C06": "partitions/test_schemes.py test_a_vast_alpha_is_the_limit_of_even_shares",
    "C07": "core/test_evaluation.py test_a_rule_without_a_prototype_is_empty",
    "C08": "baselines/test_generative.py test_ccvr_draws_at_every_scale",
    "C09": "data/test_formats.py test_a_folder_10_of_syn_is_the_digit_0_as_in_a_mat",
    "C10": "rebuild/test_parameters.py C10",
    "C11": "rebuild/test_parameters.py C11",
    "C12": "rebuild/test_make.py test_a_dead_kernel_a_timeout_and_an_unknown_magic",
    "C13": "papers/test_protocols.py test_a_setting_that_nothing_reads_is_refused",
    "C14": "runs/test_runner.py C14",
    "C15": "runs/test_runner.py test_how_many_clients_a_mean_is_over_stands_beside_it",
}


def test_every_case_is_held():
    every = [f"A{n:02}" for n in range(1, 21)] + [f"C{n:02}" for n in range(1, 16)]
    assert sorted(CASES) == every


@pytest.mark.parametrize("case", CASES)
def test_the_test_of_a_case_is_there(case):
    file, _, what = CASES[case].partition(" ")
    text = (ROOT / "tests" / file).read_text("utf-8")
    assert re.search(rf"def {what}" if what.startswith("test_") else what, text)
