# SPDX-License-Identifier: GPL-3.0-or-later
"""Levels of fault codes: the built-in ones, and files of operators. The vendor's own file is compared in tests/shared."""

import json

import pytest
import yaml


@pytest.fixture(scope="module")
def faults(package):
    import npu_agent.faults

    return npu_agent.faults


# --- what is built in

def test_numbers(faults):
    """The vendor's file has 804 entries: B4060011 is there twice, A2301001 in two lists."""
    levels = faults.load().levels
    count = {word: list(levels.values()).count(word) for word in faults.ORDER}
    assert count == {
        "NotHandleFault": 132, "SubHealthFault": 13, "RestartRequest": 33, "RestartBusiness": 24, "FreeRestartNPU": 23, "RestartNPU": 162,
        "PreSeparateNPU": 200, "SeparateNPU": 215, "ManuallySeparateNPU": 0,
    }


@pytest.mark.parametrize(("code", "level"), [
    ("80E21007", "NotHandleFault"), ("81078603", "NotHandleFault"), ("8C2FA009", "NotHandleFault"), ("200001002", "NotHandleFault"),
    ("80DE0207", "SubHealthFault"), ("110000002", "SubHealthFault"), ("20000002", "SubHealthFault"),  # 020000002 there
    ("80C98008", "RestartRequest"), ("8107800D", "RestartRequest"),
    ("80E01801", "RestartBusiness"), ("B4060011", "RestartBusiness"),
    ("8C0E4E00", "FreeRestartNPU"), ("81CB8009", "FreeRestartNPU"),
    ("40F84E00", "RestartNPU"), ("8C1FA006", "RestartNPU"),
    ("8F180220", "PreSeparateNPU"), ("110001024", "PreSeparateNPU"),
    ("A2301001", "SeparateNPU"),  # in RestartBusinessCodes as well
    ("20001002", "SeparateNPU"),  # 020001002 there, a number for the vendor
    ("12345678", None), ("80e21007", None),
])
def test_some_codes(faults, code, level):
    assert faults.load().of(code) == level


def test_rules(faults):
    rules = faults.load().rules
    assert len(rules) == 43
    assert rules["80C98000"] == rules["81978008"] == faults.Rule("ManuallySeparateNPU", 86400, 2, None)
    assert rules["80E18005"] == faults.Rule("ManuallySeparateNPU", 86400, 3, None)
    assert rules["81078603"] == faults.Rule("ManuallySeparateNPU", 86400, 5, 172800)


def test_every_level_has_a_meaning_and_an_order(faults):
    assert set(faults.MEANING) == set(faults.ORDER) and set(faults.HEALTHY) == set(faults.ORDER[:2])
    assert faults.worse("RestartNPU", "SeparateNPU") == faults.worse("SeparateNPU", "RestartNPU") == "SeparateNPU"
    assert faults.worse(None, "NotHandleFault") == "NotHandleFault" and faults.worse(None, None) is None


# --- an operator's file

def write(tmp_path, content):
    file = tmp_path / "faults.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content, indent="\t"))
    return str(file)


def test_a_code_leaves_its_level(faults, tmp_path):
    file = write(tmp_path, {"NotHandleFaultCodes": ["80E01801", "0x8c1fa006", "80c98008"],
                            "SeparateNPUCodes": ["12345678", "020001002"], "PreSeparateNPUNetworkCodes": ["81078603"]})
    levels, own = faults.load(file), faults.load()
    changed = {"80E01801": "NotHandleFault", "8C1FA006": "NotHandleFault", "80C98008": "NotHandleFault", "12345678": "SeparateNPU",
               "81078603": "PreSeparateNPU"}
    assert levels.levels == {**own.levels, **changed} and levels.rules == own.rules and levels.notes == []


def test_a_code_in_two_lists_has_the_worse_level(faults, tmp_path):
    for first, second in (("RestartNPUCodes", "SubHealthFaultCodes"), ("SubHealthFaultCodes", "RestartNPUCodes")):
        assert faults.load(write(tmp_path, {first: ["80E21007"], second: ["80E21007"]})).of("80E21007") == "RestartNPU"


def test_yaml_without_quotes(faults, tmp_path):
    """Codes look like numbers of several kinds to YAML."""
    codes = ["80818200", "0x80E21007", "80E21007", "08118045", "110000002", "8118e450"]
    levels = faults.load(write(tmp_path, "SeparateNPUCodes:\n" + "".join(f"  - {code}\n" for code in codes)))
    for code in ("80818200", "80E21007", "08118045", "110000002", "8118E450"):
        assert levels.of(code) == "SeparateNPU"


def test_rules_of_a_file_stand_in_place_of_those_built_in(faults, tmp_path):
    rule = {"EventId": ["0x80e01801", "81078603"], "TimeWindow": 60, "Times": 1, "FaultHandling": "SeparateNPU", "ReleaseTimeWindow": 600}
    other = {"EventId": ["12345678"], "TimeWindow": 864000, "Times": 100, "FaultHandling": "ManuallySeparateNPU", "ReleaseTimeWindow": 0}
    file = {"FaultFrequency": [rule, other], "GraceTolerance": {"WaitDeviceResetTime": 150}}
    levels = faults.load(write(tmp_path, file))
    assert levels.rules == {
        "80E01801": faults.Rule("SeparateNPU", 60, 1, 600), "81078603": faults.Rule("SeparateNPU", 60, 1, 600),
        "12345678": faults.Rule("ManuallySeparateNPU", 864000, 100, None),
    }
    assert levels.levels == faults.load().levels
    assert [note.split(": ", 1)[1].split(" is not used")[0] for note in levels.notes] == ["GraceTolerance"]
    assert levels.lasting == faults.load().lasting == {"81078603": faults.Duration("PreSeparateNPU", 20, 60)}
    assert faults.load(write(tmp_path, {"FaultFrequency": []})).rules == {}


def test_rules_of_what_lasts(faults, tmp_path):
    rule = {"EventId": ["0x81078603", "80e01801"], "FaultTimeout": 0, "RecoverTimeout": 86400, "FaultHandling": "SubHealthFault"}
    levels = faults.load(write(tmp_path, {"FaultDuration": [rule]}))
    assert levels.lasting == dict.fromkeys(("81078603", "80E01801"), faults.Duration("SubHealthFault", 0, 86400))
    assert levels.rules == faults.load().rules and levels.notes == []
    assert faults.load(write(tmp_path, {"FaultDuration": []})).lasting == {}


def test_an_empty_file_changes_nothing(faults, tmp_path):
    for text in ("", "# nothing\n", "{}"):
        levels = faults.load(write(tmp_path, text))
        assert levels.levels == faults.load().levels and levels.rules == faults.load().rules


GOOD_RULE = {"EventId": ["80E01801"], "TimeWindow": 60, "Times": 2, "FaultHandling": "ManuallySeparateNPU"}


def rule(**changes):
    return {"FaultFrequency": [{key: value for key, value in {**GOOD_RULE, **changes}.items() if value is not None}]}


GOOD_LASTING = {"EventId": ["80E01801"], "FaultTimeout": 20, "RecoverTimeout": 60, "FaultHandling": "PreSeparateNPU"}


def lasting(**changes):
    return {"FaultDuration": [{key: value for key, value in {**GOOD_LASTING, **changes}.items() if value is not None}]}


@pytest.mark.parametrize(("content", "words"), [
    ("- 1\n", "line 1: the file must have the keys NotHandleFaultCodes, SubHealthFaultCodes"),
    ("a: [\n", "is neither JSON nor YAML"),
    ("a: \x01", "is neither JSON nor YAML"),
    ({"NotHandleFault": []}, "has no key 'NotHandleFault'; allowed: NotHandleFaultCodes"),
    ("NotHandleFaultCodes: []\nNotHandleFaultCodes: []\n", "line 2: NotHandleFaultCodes is there a second time"),
    ("? [1]\n: 1\n", "line 1: the file has no key nothing"),
    ({"NotHandleFaultCodes": "80E01801"}, "NotHandleFaultCodes is '80E01801'; allowed: a list"),
    ({"NotHandleFaultCodes": {}}, "NotHandleFaultCodes is a list or a mapping; allowed: a list"),
    ({"NotHandleFaultCodes": ["80E0180"]}, "line 3: NotHandleFaultCodes: '80E0180' is no fault code; allowed: 8 or 9 hexadecimal digits"),
    ({"NotHandleFaultCodes": ["80E01801AB"]}, "'80E01801AB' is no fault code"),
    ({"NotHandleFaultCodes": ["[0x00f1ff09,155914,cpu,na]"]}, "is no fault code"),
    ({"NotHandleFaultCodes": [None]}, "'null' is no fault code"),
    ({"NotHandleFaultCodes": [["80E01801"]]}, "a list or a mapping is no fault code"),
    ({"FaultFrequency": {}}, "FaultFrequency is a list or a mapping; allowed: a list"),
    ({"FaultFrequency": [1]}, "a rule of FaultFrequency must have the keys EventId, FaultHandling, TimeWindow, Times, ReleaseTimeWindow"),
    (rule(EventId=None), "EventId names no code"),
    (rule(EventId=[]), "EventId names no code"),
    (rule(EventId=["x"]), "EventId: 'x' is no fault code"),
    (rule(EventId=["80E01801", "0x80e01801"]), "EventId: 80E01801 has a rule already"),
    (rule(TimeWindow=None), "TimeWindow is nothing; allowed: a whole number from 60 to 864000"),
    (rule(TimeWindow=59), "TimeWindow is '59'"),
    (rule(TimeWindow=864001), "TimeWindow is '864001'"),
    (rule(TimeWindow=60.5), "TimeWindow is '60.5'"),
    (rule(Times=0), "Times is '0'; allowed: a whole number from 1 to 100"),
    (rule(Times=101), "Times is '101'"),
    (rule(Times=True), "Times is 'true'"),
    (rule(Times=[2]), "Times is a list or a mapping"),
    (rule(FaultHandling=None), "FaultHandling is nothing; allowed: NotHandleFault, "),
    (rule(FaultHandling="Reboot", ReleaseTimeWindow=60), "FaultHandling is 'Reboot'"),
    (rule(FaultHandling="SeparateNPU"), "FaultHandling is SeparateNPU, so ReleaseTimeWindow must be given"),
    (rule(ReleaseTimeWindow=59), "ReleaseTimeWindow is '59'; allowed: a whole number from 60 to 4294967296"),
    (rule(Limit=1), "a rule of FaultFrequency has no key 'Limit'"),
    (lasting(FaultTimeout=None), "FaultTimeout is nothing; allowed: a whole number from 0 to 600"),
    (lasting(FaultTimeout=601), "FaultTimeout is '601'"),
    (lasting(RecoverTimeout=-1), "RecoverTimeout is '-1'; allowed: a whole number from 0 to 86400"),
    (lasting(FaultHandling="ManuallySeparateNPU"), "FaultHandling is 'ManuallySeparateNPU'; allowed: NotHandleFault, "),
    (lasting(EventId=["80E01801", "80e01801"]), "EventId: 80E01801 has a rule already"),
    (lasting(Times=1), "a rule of FaultDuration has no key 'Times'; allowed: EventId, FaultHandling, FaultTimeout, RecoverTimeout"),
])
def test_bad_file(faults, tmp_path, content, words):
    file = write(tmp_path, content)
    with pytest.raises(faults.FaultFileError) as error:
        faults.load(file)
    assert words in str(error.value) and all(fault.startswith(file) for fault in error.value.faults)


def test_all_faults_of_a_file_are_told_at_once(faults, tmp_path):
    file = write(tmp_path, {"NotHandleFaultCodes": ["1", "80E01801", "2"], "SeparateNPU": [], **rule(Times=0, TimeWindow=1)})
    with pytest.raises(faults.FaultFileError) as error:
        faults.load(file)
    assert len(error.value.faults) == 5


def test_a_file_that_cannot_be_read(faults, tmp_path):
    for path, words in ((tmp_path / "none", "there is no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(faults.FaultFileError, match=words):
            faults.load(str(path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(faults.FaultFileError, match="cannot be read"):
        faults.load(str(tmp_path / "binary"))


def test_pure_python_yaml_reads_the_same(faults, tmp_path, monkeypatch):
    """Wheels of PyYAML for some machines have no C part."""
    file = write(tmp_path, {"NotHandleFaultCodes": ["80E01801"], **rule()})
    with_c = faults.load(file)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert faults.load(file).levels == with_c.levels and faults.load(file).rules == with_c.rules
