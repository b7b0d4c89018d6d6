"""Upstream's conversation files: what is read, what is counted and named, and where a broken file says so."""

from __future__ import annotations

import json

import pytest
from stream_files import picture, talk, write

from wamdiff2_core.distill.stream.conversations import Conversations
from wamdiff2_core.errors import DataError


def test_a_sample_as_upstream_writes_it(tmp_path):
    sample = talk("The view: <image>\nwhere to?", "1.00,0.00", image=["obs/0.png"], id="a1")
    (got,) = list_of(Conversations([write(tmp_path / "x.json", [sample])], tmp_path / "root"))
    assert (got.answer, got.name, got.task) == ("1.00,0.00", "x.json[0] a1", None)
    assert got.images == (tmp_path / "root" / "obs" / "0.png",)
    assert [(turn.speaker, turn.text) for turn in got.turns] == [("human", "The view: <image>\nwhere to?")]


def test_paths_without_a_root_start_at_the_file(tmp_path):
    file = write(tmp_path / "deep" / "x.json", [talk("<image> a", "b", image="0.png")])
    assert Conversations([file])[0].images == (tmp_path / "deep" / "0.png",)


def test_every_answer_is_a_sample_with_what_was_said_before(tmp_path):
    said = talk("<image> one?", "1", "<image> two?", "2", "three?", "3", image=["a.png", "b.png"], id="m")
    said["conversations"].insert(0, {"from": "system", "value": "be brief"})
    got = list_of(Conversations([write(tmp_path / "x.json", [said])]))
    assert [sample.answer for sample in got] == ["1", "2", "3"]
    assert [len(sample.turns) for sample in got] == [2, 4, 6]
    assert [[path.name for path in sample.images] for sample in got] == [["a.png"], ["a.png", "b.png"]] + [
        ["a.png", "b.png"]
    ]
    assert len({sample.name for sample in got}) == 3
    assert got[0].turns[0].speaker == "system"


def test_lists_and_lines_with_letters_of_many_bytes(tmp_path):
    samples = [talk(f"ä漢😀 {number}", f"ü{number}", id=f"é{number}") for number in range(4)]
    listed = tmp_path / "a.json"
    listed.write_bytes(b"\xef\xbb\xbf" + json.dumps(samples[:2], ensure_ascii=False, indent=1).encode())
    lines = tmp_path / "b.jsonl"
    lines.write_text("\n\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples[2:]) + "\n")
    got = list_of(Conversations([listed, lines]))
    assert [sample.answer for sample in got] == ["ü0", "ü1", "ü2", "ü3"]
    assert [sample.turns[0].text for sample in got] == [f"ä漢😀 {number}" for number in range(4)]


BAD = {
    "no object": [1, None, "text"],
    "no conversations": [{"id": "x"}, {"conversations": []}, {"conversations": "hello"}],
    "turn without text": [{"conversations": [{"from": "human"}]}, {"conversations": [None]}, talk("a", None)],
    "unknown speaker": [{"conversations": [{"from": "robot", "value": "a"}]}],
    "no gpt turn": [talk("hello?")],
    "turns out of order": [
        {"conversations": [{"from": "gpt", "value": "a"}]},
        talk("a", "b", "c"),
        {"conversations": [{"from": who, "value": "a"} for who in ("human", "human", "gpt")]},
    ],
    "empty answer": [talk("a", ""), talk("a", " \n")],
    "not a number": [talk("a", "1.0,nan,2.0"), talk("velocity is: (NaN,0.00)", "1"), talk("a", "-Infinity")],
    "placeholders and images differ": [
        talk("<image> a", "b"),
        talk("a", "b", image=["0.png"]),
        talk("<image> <image> a", "b", image=["0.png"]),
        talk("a", "<image>", image=["0.png"]),
    ],
    "no image paths": [talk("<image>", "b", image=[3]), talk("<image>", "b", image=[""]), talk("a", "b", image=1.5)],
    "unknown task": [talk("a", "b", task="fly"), talk("a", "b", task=["plan"])],
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_samples_are_counted_and_named(tmp_path, reason):
    file = write(tmp_path / "x.json", [*BAD[reason], talk("good", "yes")])
    data = Conversations([file])
    assert [sample.answer for sample in list_of(data)] == ["yes"]
    assert data.tally.bad == {reason: len(BAD[reason])}
    assert [name.split(":")[0] for name in data.tally.bad_names] == [
        f"x.json[{number}]" + (" x" if isinstance(sample, dict) and "id" in sample else "")
        for number, sample in enumerate(BAD[reason])
    ]


def test_words_that_look_like_no_number_are_fine(tmp_path):
    texts = ["information", "Nancy drives, nan bread", "infinite", "inform: infer", "banana, 3"]
    data = Conversations([write(tmp_path / "x.json", [talk("a", text) for text in texts])])
    assert [sample.answer for sample in list_of(data)] == texts and not data.tally.bad


def test_no_boxes_is_an_answer_of_detect(tmp_path):
    assert Conversations([write(tmp_path / "x.json", [talk("detect", "", task="detect")])])[0].answer == ""


def test_a_list_that_breaks_off_gives_what_is_whole_and_says_so(tmp_path):
    whole = write(tmp_path / "x.json", [talk("a", str(number)) for number in range(5)]).read_bytes()
    for cut in (len(whole) - 1, len(whole) - 3, 2 * len(whole) // 3):
        (tmp_path / "cut.json").write_bytes(whole[:cut])
        data = Conversations([tmp_path / "cut.json"])
        assert 3 <= len(data) <= 5 and data.tally.bad == {"broken JSON": 1}
        assert data.tally.bad_names[0].startswith(f"cut.json[{len(data)}] at ")
    (tmp_path / "cut.json").write_bytes(json.dumps([talk("a", "b"), talk("ü", "ü")], ensure_ascii=False).encode()[:-7])
    assert len(Conversations([tmp_path / "cut.json"])) == 1


def test_a_broken_line_costs_one_sample(tmp_path):
    lines = [json.dumps(talk("a", str(number))) for number in range(5)]
    lines[2] = lines[2][:-4]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    data = Conversations([tmp_path / "x.jsonl"])
    assert [sample.answer for sample in list_of(data)] == ["0", "1", "3", "4"]
    assert data.tally.bad == {"broken JSON": 1} and data.tally.bad_names[0].startswith("x.jsonl[2] at ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[{"conv', r"x.json: byte 1: no sample can be read"),
        (b"hello", r"x.json: byte 0: expected a JSON list or JSON lines, got 'hello'"),
        (b"", r"x.json: byte 0: expected"),
        ('[{"id": 1}]'.encode("utf-16"), r"x.json: byte 0: expected UTF-8, got UTF-16"),
        (b"[]", r"no usable sample in .*x.json: no bad samples"),
        (b"[1, 2]", r"no usable sample in .*x.json: 2 bad samples \(2 no object\), the first: x.json\[0\]"),
        (b"[" * 100_000, r"x.json: byte 1: no sample can be read"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path, content, said):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=said):
        Conversations([tmp_path / "x.json"])


def test_no_such_file(tmp_path):
    with pytest.raises(DataError, match=r"gone.json: expected a file of conversations, got No such file"):
        Conversations([tmp_path / "gone.json"])


def test_a_file_that_changed_under_us(tmp_path):
    picture(tmp_path / "0.png", (32, 32))
    file = write(tmp_path / "x.json", [talk("a", "b"), talk("c", "d")])
    data = Conversations([file])
    file.write_text("[]")
    with pytest.raises(DataError, match=r"x.json: byte \d+: the sample seen here before cannot be read again"):
        data[1]


def list_of(data: Conversations) -> list:
    return [data[number] for number in range(len(data))]


def test_a_file_cut_anywhere_gives_whole_samples_or_says_why(tmp_path):
    samples = [talk(f"ü {number}?", f"😀{number}", id=f"{number}") for number in range(3)]
    for name, raw in (
        ("x.json", json.dumps(samples, ensure_ascii=False).encode()),
        ("x.jsonl", "\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples).encode()),
    ):
        kept = []
        for cut in range(len(raw)):
            (tmp_path / name).write_bytes(raw[:cut])
            try:
                data = Conversations([tmp_path / name])
            except DataError as error:
                assert name in str(error) and cut < len(raw) // 2
                continue
            answers = [sample.answer for sample in list_of(data)]
            assert answers == [f"😀{number}" for number in range(len(answers))]
            at_a_line_end = name == "x.jsonl" and raw[cut : cut + 1] in (b"\n", b"") or raw[cut - 1 : cut] == b"\n"
            assert at_a_line_end or data.tally.bad == {"broken JSON": 1}
            kept.append(len(answers))
        assert kept == sorted(kept) and set(kept) >= {1, 2}


@pytest.mark.parametrize("lines", [False, True])
def test_bytes_that_are_no_utf8_cost_only_their_sample(tmp_path, lines):
    told = [talk("go", "a\u00e9", id="one"), talk("caf\u00e9", "b", id="two"), talk("go", "\u00e9c", id="three")]
    raw = [
        json.dumps(sample, ensure_ascii=False).encode("latin-1" if k == 1 else "utf-8") for k, sample in enumerate(told)
    ]
    (tmp_path / "x.json").write_bytes(b"\n".join(raw) if lines else b"[" + b", ".join(raw) + b"]")
    data = Conversations([tmp_path / "x.json"])
    assert [data[number].answer for number in range(len(data))] == ["a\u00e9", "\u00e9c"]
    assert data.tally.bad == {"not UTF-8": 1} and data.tally.bad_names[0].startswith("x.json[1] two: not UTF-8")


def test_half_a_character_in_an_escape_is_named(tmp_path):
    file = write(
        tmp_path / "x.json",
        [talk("\ud800", "a", id="\ud801"), talk("go", "b"), talk("<image>", "c", image="\udc00.png")],
    )
    data = Conversations([file])
    assert len(data) == 1 and data.tally.bad == {"not UTF-8": 1, "no image paths": 1}
    "".join(data.tally.bad_names).encode()  # they can be printed


@pytest.mark.parametrize(("path", "good"), [
    ("a.png", True), ("x/../a.png", True), ("{root}/a.png", True),
    ("../a.png", False), ("x/../../a.png", False), ("/a.png", False), ("{root}x/a.png", False),
])  # fmt: skip
@pytest.mark.parametrize("given", [False, True])
def test_pictures_lie_below_the_root(tmp_path, path, good, given):
    root = tmp_path / "pictures" if given else tmp_path
    sample = talk("<image>", "a", image=path.format(root=root), id="one")
    file = write(tmp_path / "x.json", [sample, talk("go", "b")])
    data = Conversations([file], root if given else "")
    assert len(data) == 1 + good
    assert data.tally.bad == ({} if good else {"image outside the root": 1})


def test_files_of_one_name_are_told_apart(tmp_path):
    bad = [talk("go", "", id="one"), talk("go", "b")]
    files = [write(tmp_path / folder / "x.json", bad) for folder in ("first", "second")]
    data = Conversations(files)
    assert data.tally.bad == {"empty answer": 2}
    assert [name.split("[")[0] for name in data.tally.bad_names] == [str(file) for file in files]


@pytest.mark.parametrize("text", [
    "1.00,nan", "NaN", "(-inf,0.0)", "1.0,NAN,2.0", "infinity, 1.0", "velocity nan 0.0", "0.0 Infinity; plan",
    "nan nan",
])  # fmt: skip
def test_numbers_that_are_none(tmp_path, text):
    data = Conversations([write(tmp_path / "x.json", [talk("go", text), talk(text, "go"), talk("go", "b")])])
    assert len(data) == 1 and data.tally.bad == {"not a number": 2}


@pytest.mark.parametrize("text", ["my Nan is 80", "inform, info", "nano 5", "a nan bread", "banana, 1.0"])
def test_words_that_look_like_no_numbers(tmp_path, text):
    assert len(Conversations([write(tmp_path / "x.json", [talk(text, "b")])])) == 1
